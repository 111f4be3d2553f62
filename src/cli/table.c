/*
 * table.c - results as Markdown (readable as it is on a terminal), CSV or JSON.
 *
 * Called by bench, demo, check and info. Cells are text; columns say which of them are numbers.
 * Must not: know what is in them.
 */
#include "cli/cli.h"

#include <string.h>

void sv_cli_table_init(struct sv_cli_table *t)
{
    memset(t, 0, sizeof *t);
}

void sv_cli_table_fini(struct sv_cli_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        sv_free(t->cell[i]);
    sv_free(t->cell);
    memset(t, 0, sizeof *t);
}

void sv_cli_table_column(struct sv_cli_table *t, const char *name, bool number)
{
    SV_REQUIRE(t->n_columns < SV_CLI_MAX_COLUMNS);
    t->column[t->n_columns++] = (struct sv_cli_column){name, number};
}

void sv_cli_table_add(struct sv_cli_table *t, const char *fmt, ...)
{
    struct sv_buf b;
    char **grown, *copy;
    va_list ap;
    char text[1024];

    if (t->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sv_buf_init(&b);
    if (t->n_cells == t->cap_cells) {
        size_t cap = t->cap_cells ? 2 * t->cap_cells : 64;
        grown = sv_realloc(t->cell, t->cap_cells * sizeof *grown, cap * sizeof *grown);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->cell = grown;
        t->cap_cells = cap;
    }
    copy = sv_strdup(text);
    if (!copy) {
        t->failed = true;
        return;
    }
    t->cell[t->n_cells++] = copy;
}

bool sv_cli_table_format_known(const char *format)
{
    return strcmp(format, "md") == 0 || strcmp(format, "csv") == 0 || strcmp(format, "json") == 0;
}

int sv_cli_text_columns(const char *text, size_t n)
{
    int columns = 0;

    for (size_t i = 0; i < n; i++)
        columns += ((unsigned char)text[i] & 0xC0) != 0x80;
    return columns;
}

static const char *cell(const struct sv_cli_table *t, size_t row, int column)
{
    return t->cell[row * (size_t)t->n_columns + (size_t)column];
}

static void put_padded(struct sv_buf *b, const char *text, int width, bool right)
{
    int pad = width - sv_cli_text_columns(text, strlen(text));

    sv_buf_printf(b, " %*s%s%*s |", right ? pad : 0, "", text, right ? 0 : pad, "");
}

static void write_md(const struct sv_cli_table *t, size_t n_rows, struct sv_buf *b)
{
    int width[SV_CLI_MAX_COLUMNS];

    for (int c = 0; c < t->n_columns; c++) {
        width[c] = sv_cli_text_columns(t->column[c].name, strlen(t->column[c].name));
        if (width[c] < 3)
            width[c] = 3; /* "--:" */
        for (size_t r = 0; r < n_rows; r++) {
            int w = sv_cli_text_columns(cell(t, r, c), strlen(cell(t, r, c)));
            width[c] = w > width[c] ? w : width[c];
        }
    }
    sv_buf_append(b, "|", 1);
    for (int c = 0; c < t->n_columns; c++)
        put_padded(b, t->column[c].name, width[c], t->column[c].number);
    sv_buf_append(b, "\n|", 2);
    for (int c = 0; c < t->n_columns; c++) {
        sv_buf_append(b, " ", 1);
        for (int i = 0; i < width[c] - t->column[c].number; i++)
            sv_buf_append(b, "-", 1);
        sv_buf_append(b, t->column[c].number ? ": |" : " |", t->column[c].number ? 3 : 2);
    }
    sv_buf_append(b, "\n", 1);
    for (size_t r = 0; r < n_rows; r++) {
        sv_buf_append(b, "|", 1);
        for (int c = 0; c < t->n_columns; c++)
            put_padded(b, cell(t, r, c), width[c], t->column[c].number);
        sv_buf_append(b, "\n", 1);
    }
}

/* Column names as keys: "tok/s" stays, blanks become underscores. */
static void put_key(struct sv_buf *b, const char *name)
{
    for (const char *p = name; *p; p++)
        sv_buf_append(b, *p == ' ' ? "_" : p, 1);
}

static void put_csv_cell(struct sv_buf *b, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        sv_buf_append(b, text, strlen(text));
        return;
    }
    sv_buf_append(b, "\"", 1);
    for (const char *p = text; *p; p++)
        sv_buf_append(b, *p == '"' ? "\"\"" : p, *p == '"' ? 2 : 1);
    sv_buf_append(b, "\"", 1);
}

static void write_csv(const struct sv_cli_table *t, size_t n_rows, struct sv_buf *b)
{
    for (int c = 0; c < t->n_columns; c++) {
        if (c)
            sv_buf_append(b, ",", 1);
        put_key(b, t->column[c].name);
    }
    sv_buf_append(b, "\n", 1);
    for (size_t r = 0; r < n_rows; r++) {
        for (int c = 0; c < t->n_columns; c++) {
            if (c)
                sv_buf_append(b, ",", 1);
            put_csv_cell(b, cell(t, r, c));
        }
        sv_buf_append(b, "\n", 1);
    }
}

static void write_json(const struct sv_cli_table *t, size_t n_rows, struct sv_buf *b)
{
    sv_buf_append(b, "[", 1);
    for (size_t r = 0; r < n_rows; r++) {
        sv_buf_printf(b, "%s\n  {", r ? "," : "");
        for (int c = 0; c < t->n_columns; c++) {
            const char *text = cell(t, r, c);
            sv_buf_printf(b, "%s\"", c ? ", " : "");
            put_key(b, t->column[c].name);
            sv_buf_append(b, "\": ", 3);
            if (!*text)
                sv_buf_append(b, "null", 4);
            else if (t->column[c].number && strspn(text, "+-0123456789.e") == strlen(text))
                sv_buf_append(b, text, strlen(text));
            else
                sv_json_quote(b, text, strlen(text));
        }
        sv_buf_append(b, "}", 1);
    }
    sv_buf_append(b, n_rows ? "\n]\n" : "]\n", n_rows ? 3 : 2);
}

void sv_cli_table_write(const struct sv_cli_table *t, const char *format, struct sv_buf *out)
{
    size_t n_rows = t->n_columns ? t->n_cells / (size_t)t->n_columns : 0;

    SV_REQUIRE(n_rows * (size_t)t->n_columns == t->n_cells || t->failed);
    if (t->failed)
        out->failed = true;
    else if (strcmp(format, "csv") == 0)
        write_csv(t, n_rows, out);
    else if (strcmp(format, "json") == 0)
        write_json(t, n_rows, out);
    else
        write_md(t, n_rows, out);
}

/* ---------------------------------------------------------------- sizes */

const char *sv_cli_count(int64_t n, char buf[24])
{
    double v = (double)n;

    if (n >= 1000000000)
        snprintf(buf, 24, "%.2f B", v / 1e9);
    else if (n >= 1000000)
        snprintf(buf, 24, "%.2f M", v / 1e6);
    else if (n >= 10000)
        snprintf(buf, 24, "%.1f K", v / 1e3);
    else
        snprintf(buf, 24, "%lld", (long long)n);
    return buf;
}

const char *sv_cli_bytes(int64_t n, char buf[24])
{
    double v = (double)n;

    if (n >= (int64_t)1 << 30)
        snprintf(buf, 24, "%.2f GiB", v / 0x1p30);
    else if (n >= 1 << 20)
        snprintf(buf, 24, "%.2f MiB", v / 0x1p20);
    else if (n >= 1 << 10)
        snprintf(buf, 24, "%.1f KiB", v / 0x1p10);
    else
        snprintf(buf, 24, "%lld B", (long long)n);
    return buf;
}
