/*
 * test_text.c - text out of the engine: stop strings over every split, whole code points, prompts
 * as text.
 *
 * The model is the tiny counting pair with its small tokenizer (bytes and a few merges), so text is
 * a few bytes a token and stop strings fall across tokens and blocks in every way.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

enum { TOKENS = 40 };

static struct sv_engine *open_pair(bool draft, int32_t width)
{
    struct sv_engine_options o = {
        .target_dir = run_dir("tests/golden/tiny/pair_target"),
        .draft_dir = draft ? run_dir("tests/golden/tiny/pair_draft_full_b16") : NULL,
        .dtype = SV_TYPE_F32,
        .n_threads = 1,
        .max_sequences = 3,
        .width = width};
    return run_open(&o, NULL);
}

static const char *const prompts[] = {"abc", "1 2 3 4", "hello w\xc3\xb6rld \xe2\x82\xac"};
enum { N = sizeof prompts / sizeof prompts[0] };

static void fill_cases(struct run_case *c)
{
    for (int i = 0; i < N; i++)
        c[i] = (struct run_case){.max_tokens = TOKENS,
                                 .req = {.prompt = prompts[i], .top_p = 1, .ignore_eos = true}};
}

static bool valid_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t k = c < 0x80                ? 1
                   : c >= 0xc2 && c < 0xe0 ? 2
                   : c >= 0xe0 && c < 0xf0 ? 3
                   : c >= 0xf0 && c < 0xf5 ? 4
                                           : 0;
        if (!k || i + k > n)
            return false;
        for (size_t j = 1; j < k; j++)
            if (((unsigned char)s[i + j] & 0xc0) != 0x80)
                return false;
        i += k;
    }
    return true;
}

/* The text of an answer is the decoding of its tokens, with any drafter. */
static void text_is_its_tokens(void **state)
{
    (void)state;
    struct run_case c[N];
    fill_cases(c);
    struct sv_engine *a = open_pair(false, 0), *b = open_pair(true, 0);
    struct run_out *x = run_all(a, c, N), *y = run_all(b, c, N);
    run_same(x, y, N, "text");
    for (int i = 0; i < N; i++) {
        struct sv_buf want;
        sv_buf_init(&want);
        assert_int_equal(
            sv_tokenizer_decode(a->tok, x[i].tokens, (size_t)x[i].n_tokens, true, &want), 0);
        assert_int_equal(want.len, x[i].n_text);
        assert_memory_equal(want.data, x[i].text, want.len);
        assert_string_equal(x[i].text, y[i].text);
        assert_true(valid_utf8(x[i].text, x[i].n_text));
        sv_buf_fini(&want);
    }
    run_out_free(x, N);
    run_out_free(y, N);
    sv_engine_close(a);
    sv_engine_close(b);
}

/* First place of a stop string in a text, or -1. */
static long find(const char *text, size_t n, const char *stop)
{
    size_t m = strlen(stop);
    for (size_t i = 0; i + m <= n; i++)
        if (!memcmp(text + i, stop, m))
            return (long)i;
    return -1;
}

static void check_stop(struct sv_engine *e, const struct run_out *ref, int i, const char *stop)
{
    struct run_case c[N];
    fill_cases(c);
    const char *const stops[] = {"\x01never", stop};
    c[i].req.stop = stops;
    c[i].req.n_stop = 2;
    struct run_out *out = run_all(e, &c[i], 1);
    long at = find(ref[i].text, ref[i].n_text, stop);
    assert_true(at >= 0);
    if (out->finish != SV_FINISH_STOP || out->n_text != (size_t)at)
        fail_msg("prompt %d stop \"%s\": %zu bytes of text, expected %ld", i, stop, out->n_text,
                 at);
    assert_memory_equal(out->text, ref[i].text, (size_t)at);
    /* No more tokens than it took to see the match. */
    assert_true(out->n_tokens <= ref[i].n_tokens);
    assert_memory_equal(out->tokens, ref[i].tokens, (size_t)out->n_tokens * 4);
    struct sv_buf before;
    sv_buf_init(&before);
    sv_tokenizer_decode(e->tok, out->tokens, (size_t)out->n_tokens - 1, true, &before);
    assert_true(find(before.len ? before.data : "", before.len, stop) < 0);
    sv_buf_fini(&before);
    run_out_free(out, 1);
}

/* Every substring of up to five bytes that is whole code points, as a stop string. */
static void stop_strings_everywhere(void **state)
{
    (void)state;
    struct run_case c[N];
    fill_cases(c);
    struct sv_engine *engines[] = {open_pair(false, 0), open_pair(true, 0), open_pair(true, 3)};
    struct run_out *ref = run_all(engines[0], c, N);
    int n_checked = 0;
    for (int i = 0; i < N; i++)
        for (size_t at = 0; at < ref[i].n_text; at += 3)
            for (size_t len = 1; len <= 5 && at + len <= ref[i].n_text; len += 2) {
                char stop[8] = {0};
                memcpy(stop, ref[i].text + at, len);
                if (!valid_utf8(stop, len) || strlen(stop) != len)
                    continue;
                for (size_t k = 0; k < 3; k++)
                    check_stop(engines[k], ref, i, stop);
                n_checked++;
            }
    print_message("%d stop strings\n", n_checked);
    assert_true(n_checked > 20);
    run_out_free(ref, N);
    for (size_t k = 0; k < 3; k++)
        sv_engine_close(engines[k]);
}

/* include_stop keeps the match, stop_index says which string it was; min_tokens holds stop strings
 * off until then. Worked out token by token from the text of growing prefixes of the free answer.
 */
static void expect_stop(struct sv_engine *e, const struct run_out *ref, const char *const *stops,
                        int32_t n_stops, int32_t min_tokens, int32_t *n_tokens, size_t *begin,
                        int32_t *which)
{
    *which = -1;
    *n_tokens = ref->n_tokens;
    size_t old = 0;
    struct sv_buf text;
    sv_buf_init(&text);
    struct sv_detok d;
    sv_detok_init(&d, e->tok, true);
    for (int32_t n = 1; n <= ref->n_tokens && *which < 0; n++) {
        old = text.len;
        sv_detok_push(&d, ref->tokens[n - 1], &text);
        for (int32_t k = 0; k < n_stops && n >= min_tokens; k++) {
            size_t len = strlen(stops[k]);
            for (size_t at = 0; at + len <= text.len; at++)
                if (at + len > old && !memcmp(text.data + at, stops[k], len) &&
                    (*which < 0 || at < *begin)) {
                    *which = k;
                    *begin = at;
                    *n_tokens = n;
                }
        }
    }
    sv_buf_fini(&text);
}

static void which_stop_string(void **state)
{
    (void)state;
    struct run_case c[N];
    fill_cases(c);
    struct sv_engine *engines[] = {open_pair(false, 0), open_pair(true, 0), open_pair(true, 3)};
    struct run_out *ref = run_all(engines[0], c, N);
    int n_checked = 0;
    for (int i = 0; i < N; i++)
        for (size_t at = 0; at + 4 <= ref[i].n_text; at++) {
            char a[4] = {0}, b[4] = {0};
            memcpy(a, ref[i].text + at, 3);
            memcpy(b, ref[i].text + at + 2, 2);
            if (!valid_utf8(a, 3) || !valid_utf8(b, 2))
                continue;
            const char *const stops[] = {"\x01", b, a, a};
            const int32_t min_tokens = at % 3 ? (int32_t)(at * 7 % TOKENS) : 0;
            int32_t n_tokens, which;
            size_t begin = 0;
            expect_stop(engines[0], &ref[i], stops, 4, min_tokens, &n_tokens, &begin, &which);
            for (size_t k = 0; k < 6; k++) {
                c[i].req.stop = stops;
                c[i].req.n_stop = 4;
                c[i].req.include_stop = k % 2;
                c[i].req.min_tokens = min_tokens;
                struct run_out *out = run_all(engines[k / 2], &c[i], 1);
                assert_int_equal(out->stop_index, which);
                assert_int_equal(out->stop_id, -1);
                assert_int_equal(out->n_tokens, n_tokens);
                assert_int_equal(out->finish, which < 0 ? SV_FINISH_LENGTH : SV_FINISH_STOP);
                size_t want =
                    which < 0 ? ref[i].n_text : begin + (k % 2 ? strlen(stops[which]) : 0);
                assert_int_equal(out->n_text, want);
                assert_memory_equal(out->text, ref[i].text, want);
                run_out_free(out, 1);
            }
            n_checked += which >= 0;
        }
    assert_true(n_checked > 30);
    run_out_free(ref, N);
    for (size_t k = 0; k < 3; k++)
        sv_engine_close(engines[k]);
}

/* Text that may be the start of a stop string waits; when the answer ends without it, it comes
 * out. */
static void held_text_is_released(void **state)
{
    (void)state;
    struct run_case c[N];
    fill_cases(c);
    struct sv_engine *e = open_pair(true, 0);
    struct run_out *ref = run_all(e, c, N);
    for (int i = 0; i < N; i++) {
        char stop[400];
        size_t n = ref[i].n_text < 300 ? ref[i].n_text : 300;
        memcpy(stop, ref[i].text + ref[i].n_text - n, n);
        strcpy(stop + n, "\x01"); /* all but the last byte stands at the very end */
        const char *const stops[] = {stop};
        c[i].req.stop = stops;
        c[i].req.n_stop = 1;
        struct run_out *out = run_all(e, &c[i], 1);
        assert_int_equal(out->n_text, ref[i].n_text);
        assert_memory_equal(out->text, ref[i].text, out->n_text);
        assert_int_equal(out->finish, SV_FINISH_LENGTH);
        run_out_free(out, 1);
    }
    run_out_free(ref, N);
    sv_engine_close(e);
}

/* A token may hold a stop string and the beginning of a code point: nothing of that comes out. */
static void bytes_behind_a_stop_string(void **state)
{
    (void)state;
    /* U+00C3 is byte C3 */
    static const char file[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"x\\u00c3\":1},\"merges\":[]}}";
    static const char *const stops[] = {"x"};
    static const int32_t prompt[] = {0};
    const struct sv_config cfg = {.vocab_size = 2};
    struct sv_tokenizer *tok;
    struct sv_err err;
    if (sv_tokenizer_parse(&tok, file, strlen(file), &err) < 0)
        fail_msg("%s", err.msg);
    for (int keep = 0; keep < 2; keep++) {
        const struct sv_seq_limits lim = {
            .cfg = &cfg, .tok = tok, .context = 8, .width = 1, .max_token_bytes = 8};
        const struct sv_request r = {.top_p = 1,
                                     .prompt_ids = prompt,
                                     .n_prompt_ids = 1,
                                     .max_tokens = 4,
                                     .stop = stops,
                                     .n_stop = 1,
                                     .include_stop = keep};
        struct sv_seq *q;
        if (sv_seq_new(&q, 1, &r, &lim, NULL, &err))
            fail_msg("%s", err.msg);
        assert_false(sv_seq_append(q, 0, &cfg));
        assert_true(sv_seq_append(q, 1, &cfg));
        assert_int_equal(q->finish, SV_FINISH_STOP);
        assert_int_equal(q->n_text_ready, 1 + keep);
        assert_memory_equal(q->text.data, "ax", q->n_text_ready);
        sv_seq_free(q);
    }
    sv_tokenizer_close(tok);
}

/* The text of two steps of the widest block has room, of bytes that are no UTF-8, too: nothing is
 * allocated in a step. */
static void room_for_two_steps(void **state)
{
    (void)state;
    static const char file[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\u00ff\u00ff\u00ff\u00ff\":0},\"merges\":[]}}";
    static const int32_t prompt[] = {0};
    const struct sv_config cfg = {.vocab_size = 1};
    struct sv_tokenizer *tok;
    struct sv_err err;
    if (sv_tokenizer_parse(&tok, file, strlen(file), &err) < 0)
        fail_msg("%s", err.msg);
    const struct sv_seq_limits lim = {
        .cfg = &cfg, .tok = tok, .context = 256, .width = SV_MAX_BLOCK, .max_token_bytes = 4};
    const struct sv_request r = {
        .top_p = 1, .prompt_ids = prompt, .n_prompt_ids = 1, .max_tokens = 2 * SV_MAX_BLOCK};
    struct sv_seq *q;
    assert_int_equal(sv_seq_new(&q, 1, &r, &lim, NULL, &err), 0);
    const size_t cap = q->text.cap;
    while (!sv_seq_append(q, 0, &cfg)) {
    }
    assert_int_equal(q->text.len, 2 * SV_MAX_BLOCK * 4 * 3);
    assert_int_equal(q->text.cap, cap);
    sv_seq_free(q);
    sv_tokenizer_close(tok);
}

/* Special tokens are no text, but for those that the request names, or all. */
static void special_tokens_that_are_shown(void **state)
{
    (void)state;
    static const int32_t prompt[] = {9}, shown[] = {1, 2};
    static const char *const want[] = {"", "<|bos|>", "<|pad|><|bos|>"};
    const struct sv_config cfg = {.vocab_size = 100};
    struct sv_tokenizer *tok;
    struct sv_err err;
    assert_int_equal(sv_tokenizer_open(&tok, run_dir("tests/golden/tiny/pair_target"), &err), 0);
    for (int k = 0; k < 4; k++) {
        const struct sv_seq_limits lim = {
            .cfg = &cfg, .tok = tok, .context = 8, .width = 1, .max_token_bytes = 16};
        const struct sv_request r = {.top_p = 1,
                                     .prompt_ids = prompt,
                                     .n_prompt_ids = 1,
                                     .shown_ids = shown,
                                     .n_shown_ids = k == 1   ? 2
                                                    : k == 3 ? 17
                                                             : 0,
                                     .show_special = k == 2};
        struct sv_seq *q;
        if (k == 3) {
            assert_int_equal(sv_seq_new(&q, 1, &r, &lim, NULL, &err), SV_EINVAL);
            break;
        }
        assert_int_equal(sv_seq_new(&q, 1, &r, &lim, NULL, &err), 0);
        assert_false(sv_seq_append(q, 0, &cfg));
        assert_false(sv_seq_append(q, 1, &cfg));
        assert_int_equal(q->n_text_ready, strlen(want[k]));
        assert_memory_equal(q->text.data ? q->text.data : "", want[k], q->n_text_ready);
        sv_seq_free(q);
    }
    sv_tokenizer_close(tok);
}

SV_TEST_MAIN(cmocka_unit_test(text_is_its_tokens), cmocka_unit_test(stop_strings_everywhere),
             cmocka_unit_test(which_stop_string), cmocka_unit_test(held_text_is_released),
             cmocka_unit_test(bytes_behind_a_stop_string), cmocka_unit_test(room_for_two_steps),
             cmocka_unit_test(special_tokens_that_are_shown))
