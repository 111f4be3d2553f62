/*
 * driver.c - runs a fuzz target without libFuzzer: its corpus, then a fixed list of mutations of
 * it.
 *
 * Linked with each tests/fuzz/fuzz_<name>.c for `make test`; its seeds are
 * tests/fuzz/corpus/<name>/. Every input ends at a page that cannot be read, so an overrun of one
 * byte stops the program even where ASan sees no block. The input at hand is written to
 * build/crash-<name> when the target dies. Must not: draw on anything but the corpus and a fixed
 * seed, so that a failure comes back.
 */
#define _GNU_SOURCE

#include "testing.h"
#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_MUTATIONS 20000
#define LIMIT_MS 2500              /* of all mutations: slow targets get fewer */
#define LONGEST_RUN_S 20           /* of one input */
#define LONGEST_INPUT (256u << 10) /* bytes; a longer seed is an error */
#define MAX_SEEDS 512

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
extern const bool fuzz_keeps_blocks __attribute__((weak)); /* from one input to the next */
void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

static struct {
    char name[64];
    char crash_path[512];
    struct sv_buf seeds[MAX_SEEDS];
    int n_seeds;
    uint8_t *area; /* LONGEST_INPUT readable bytes, then the page that is not */
    const uint8_t *input;
    size_t n_input;
    int64_t n_live; /* blocks that live between two inputs; -1: not known yet */
} F = {.n_live = -1};

/* Only calls that are allowed in a signal handler. */
static void keep_input(void)
{
    static const char text[] = "fuzz driver: the input is kept in ";
    int fd = open(F.crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return;
    if (write(fd, F.input, F.n_input) >= 0 && write(2, text, sizeof text - 1) > 0 &&
        write(2, F.crash_path, strlen(F.crash_path)) > 0 && write(2, "\n", 1) > 0)
        close(fd);
}

static void on_signal(int sig)
{
    keep_input();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(const uint8_t *data, size_t n)
{
    uint8_t *at = F.area + LONGEST_INPUT - n;

    if (n)
        memcpy(at, data, n);
    F.input = at;
    F.n_input = n;
    alarm(LONGEST_RUN_S);
    LLVMFuzzerTestOneInput(at, n);
    alarm(0);
    if (F.n_live < 0)
        F.n_live = sv_alloc_live(); /* what the target set up on its first call may stay */
    if (sv_alloc_live() != F.n_live && !(&fuzz_keeps_blocks && fuzz_keeps_blocks)) {
        fprintf(stderr, "fuzz driver: %lld blocks leaked\n",
                (long long)(sv_alloc_live() - F.n_live));
        abort();
    }
}

/* ---------------------------------------------------------------- mutations */

static const uint64_t INTERESTING[] = {
    0,          1,          2,          7,          8,          0x7f,       0x80,
    0xff,       0x7fff,     0x8000,     0xffff,     0x7fffffff, 0x80000000, 0xffffffff,
    1ull << 32, 1ull << 40, 1ull << 53, 1ull << 62, INT64_MAX,  1ull << 63, UINT64_MAX};
static const char *const WORDS[] = {
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "1.5",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[",
    "\xff",
    "\n",
    "99999999999999999999",
    "\xef\xbf\xbd",
    "[0,0]",
    "{}",
};

struct input {
    uint8_t bytes[LONGEST_INPUT];
    size_t n;
};

static size_t below(struct sv_rng *rng, size_t n)
{
    return n ? sv_rng_below(rng, (uint32_t)n) : 0;
}

/* Puts n bytes at `at` in place of `drop` bytes, as far as there is room. */
static void replace(struct input *in, size_t at, size_t drop, const void *bytes, size_t n)
{
    size_t rest = in->n - at; /* bytes from `at` on */

    if (at > in->n || rest > LONGEST_INPUT)
        return;
    if (drop > rest)
        drop = rest;
    rest -= drop;
    if (at + n + rest > LONGEST_INPUT)
        return;
    memmove(in->bytes + at + n, in->bytes + at + drop, rest);
    if (n)
        memcpy(in->bytes + at, bytes, n);
    in->n += n - drop;
}

static void put_number(struct input *in, struct sv_rng *rng)
{
    uint64_t v = INTERESTING[below(rng, sizeof INTERESTING / sizeof INTERESTING[0])];
    size_t width = (size_t)1 << below(rng, 4), at = below(rng, in->n + 1);
    uint8_t bytes[8];

    if (below(rng, 4) == 0)
        v = in->n - below(rng, 17) + 8; /* lengths near the end of the input */
    if (below(rng, 2))
        at = at / 8 * 8;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    replace(in, at, width, bytes, width);
}

/* Replaces a decimal number in the text by another. */
static void change_digits(struct input *in, struct sv_rng *rng)
{
    size_t at = below(rng, in->n + 1), n = 0;
    char text[24];

    while (at < in->n && (in->bytes[at] < '0' || in->bytes[at] > '9'))
        at++;
    while (at + n < in->n && in->bytes[at + n] >= '0' && in->bytes[at + n] <= '9')
        n++;
    snprintf(text, sizeof text, "%lld",
             (long long)INTERESTING[below(rng, sizeof INTERESTING / sizeof INTERESTING[0])]);
    if (n)
        replace(in, at, n, text, strlen(text));
}

static void mutate(struct input *in, struct sv_rng *rng)
{
    const struct sv_buf *other = &F.seeds[below(rng, (size_t)F.n_seeds)];
    size_t at = below(rng, in->n + 1), len = below(rng, 32) + 1, from;
    const char *word;
    uint8_t byte, piece[32];

    switch (below(rng, 9)) {
    case 0: /* flip a bit */
        if (at < in->n)
            in->bytes[at] ^= (uint8_t)(1u << below(rng, 8));
        break;
    case 1: /* any byte, or one of the input's own */
        byte = in->n && below(rng, 2) ? in->bytes[below(rng, in->n)] : (uint8_t)sv_rng_next(rng);
        replace(in, at, below(rng, 2), &byte, 1);
        break;
    case 2: /* cut off */
        in->n = at;
        break;
    case 3: /* take out */
        replace(in, at, len, NULL, 0);
        break;
    case 4: /* say twice */
        from = below(rng, in->n + 1);
        if (len > in->n - from)
            len = in->n - from;
        memcpy(piece, in->bytes + from, len);
        replace(in, at, 0, piece, len);
        break;
    case 5:
        put_number(in, rng);
        break;
    case 6:
        change_digits(in, rng);
        break;
    case 7:
        word = WORDS[below(rng, sizeof WORDS / sizeof WORDS[0])];
        replace(in, at, below(rng, 2) * strlen(word), word, strlen(word));
        break;
    default: /* a piece of another seed */
        from = below(rng, other->len + 1);
        if (len * 4 < other->len - from)
            replace(in, at, below(rng, 2) * len, other->data + from, len * 4);
        break;
    }
}

static int run_mutations(void)
{
    struct sv_rng rng = {20240607};
    struct input *in = malloc(sizeof *in); /* not of the blocks that run() counts */
    int64_t end = sv_clock_us() + LIMIT_MS * 1000;
    int i = 0;

    for (; in && i < N_MUTATIONS && sv_clock_us() < end; i++) {
        const struct sv_buf *seed = &F.seeds[below(&rng, (size_t)F.n_seeds)];
        in->n = seed->len;
        if (in->n)
            memcpy(in->bytes, seed->data, in->n);
        for (size_t k = below(&rng, 5) + 1; k > 0; k--)
            mutate(in, &rng);
        run(in->bytes, in->n);
    }
    free(in);
    return i;
}

/* ---------------------------------------------------------------- start */

static int in_order(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* The empty input is always a seed. */
static bool load_seeds(void)
{
    char relative[128];
    const char *dir;
    struct dirent **names = NULL;
    struct sv_err err;
    bool ok = true;
    int n;

    snprintf(relative, sizeof relative, "tests/fuzz/corpus/%s", F.name);
    dir = sv_test_path(relative);
    n = scandir(dir, &names, NULL, in_order);
    sv_buf_init(&F.seeds[F.n_seeds++]);
    for (int i = 0; i < n; i++) {
        char *path = sv_path_join(dir, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && F.n_seeds < MAX_SEEDS && !sv_dir_exists(path)) {
            struct sv_buf *seed = &F.seeds[F.n_seeds++];
            sv_buf_init(seed);
            if (sv_file_read(seed, path, LONGEST_INPUT, &err) != SV_OK) {
                fprintf(stderr, "%s\n", err.msg);
                ok = false;
            }
        }
        sv_free(path);
        free(names[i]);
    }
    free(names);
    return ok;
}

static bool make_area(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    F.area = mmap(NULL, LONGEST_INPUT + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    return F.area != MAP_FAILED && mprotect(F.area + LONGEST_INPUT, page, PROT_NONE) == 0;
}

static void set_names(const char *prog)
{
    const char *base = strrchr(prog, '/') ? strrchr(prog, '/') + 1 : prog;
    const char *at = strncmp(base, "fuzz_", 5) == 0 ? base + 5 : base;
    snprintf(F.name, sizeof F.name, "%s", at);
    snprintf(F.crash_path, sizeof F.crash_path, "%s%s", sv_test_path("build/crash-"), F.name);
}

int main(int argc, char **argv)
{
    int n_mutated;

    set_names(argv[0]);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        puts("replay");
        return 0;
    }
    if (!make_area() || !load_seeds())
        return 1;
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(keep_input);
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
    sv_log_set_level(SV_LOG_ERROR);
    if (argc == 2 && strcmp(argv[1], "replay") != 0) { /* one file by hand */
        struct sv_buf one;
        struct sv_err err;
        sv_buf_init(&one);
        if (sv_file_read_stream(&one, argv[1], LONGEST_INPUT, &err) != SV_OK) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        run((const uint8_t *)one.data, one.len);
        sv_buf_fini(&one);
        return 0;
    }
    for (int i = 0; i < F.n_seeds; i++)
        run((const uint8_t *)F.seeds[i].data, F.seeds[i].len);
    n_mutated = run_mutations();
    printf("%s: %d seeds, %d mutations\n", F.name, F.n_seeds - 1, n_mutated);
    for (int i = 0; i < F.n_seeds; i++)
        sv_buf_fini(&F.seeds[i]);
    return 0;
}
