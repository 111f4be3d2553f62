/*
 * test_ends.c - models with several end tokens, as generation_config.json lists them: each ends an
 * answer, at every index, with and without drafts, and min_tokens holds all of them off.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <stdio.h>
#include <string.h>

enum { N = 3, LONG = 24, N_ENDS = 3 };

static const struct run_arrangement arrangements[] = {
    {.drafter = -1, .batch = 3, .page = 16, .threads = 1, .chunk = 512, .width = 1},
    {.drafter = SV_FAKE_RIGHT, .batch = 3, .page = 16, .threads = 1, .chunk = 512, .width = 16},
    {.drafter = 4, .batch = 1, .page = 16, .threads = 1, .chunk = 512, .width = 16},
};

static void write_ends(const char *dir, const int32_t *ends)
{
    char path[512], text[128];
    struct sv_err err;

    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    snprintf(text, sizeof text, "{\"eos_token_id\": [%d, %d, %d]}", ends[0], ends[1], ends[2]);
    assert_int_equal(sv_file_write(path, text, strlen(text), &err), SV_OK);
}

/* Where the first of the ends stands at `from` or later, LONG when none does. */
static int32_t first_end(const int32_t *tokens, const int32_t *ends, int32_t from)
{
    for (int32_t i = from; i < LONG; i++)
        for (int k = 0; k < N_ENDS; k++)
            if (tokens[i] == ends[k])
                return i;
    return LONG;
}

static void each_of_several_ends_it(void **state)
{
    (void)state;
    const struct run_pair pair = {toy_target(&toy_bf16), toy_draft(&toy_bf16)};
    struct run_case *c = run_cases(N, RUN_VOCAB, 20, LONG, 9);
    for (int i = 0; i < N; i++)
        c[i].max_tokens = LONG;
    struct sv_engine *e = run_open_as(&pair, &arrangements[0], SV_ISA_AUTO, SV_TYPE_F32, NULL);
    struct run_out *ref = run_all(e, c, N);
    const struct run_truth truth = {c, ref};
    int32_t n_ended = 0;

    sv_engine_close(e);
    for (int32_t at = 0; at < LONG; at += 5) {
        /* One of each answer's own tokens, in an order that puts every one of them last at
         * times. */
        int32_t ends[N_ENDS];
        for (int k = 0; k < N_ENDS; k++)
            ends[(k + at) % N_ENDS] = ref[k].tokens[at];
        write_ends(pair.target, ends);
        for (size_t a = 0; a < sizeof arrangements / sizeof arrangements[0]; a++) {
            struct run_case now[N];
            e = run_open_as(&pair, &arrangements[a], SV_ISA_AUTO, SV_TYPE_F32, &truth);
            for (int i = 0; i < N; i++) {
                now[i] = c[i];
                now[i].req.ignore_eos = false;
                now[i].req.min_tokens = 0;
            }
            struct run_out *out = run_all(e, now, N);
            for (int i = 0; i < N; i++) {
                int32_t end = first_end(ref[i].tokens, ends, 0);
                assert_true(end <= at);
                assert_int_equal(out[i].n_tokens, end + 1);
                assert_int_equal(out[i].finish, SV_FINISH_STOP);
                assert_int_equal(out[i].stop_id, ref[i].tokens[end]);
                assert_memory_equal(out[i].tokens, ref[i].tokens,
                                    (size_t)(end + 1) * sizeof(int32_t));
                n_ended++;
            }
            run_out_free(out, N);
            sv_engine_close(e);
            e = run_open_as(&pair, &arrangements[a], SV_ISA_AUTO, SV_TYPE_F32,
                            &truth); /* the fakes count requests */
            /* Held off, none of them may come, and the first that is free to come ends it. */
            for (int i = 0; i < N; i++)
                now[i].req.min_tokens = 12;
            out = run_all(e, now, N);
            for (int i = 0; i < N; i++) {
                assert_true(out[i].n_tokens > 12);
                for (int32_t j = 0; j + 1 < out[i].n_tokens; j++)
                    for (int k = 0; k < N_ENDS; k++)
                        assert_int_not_equal(out[i].tokens[j], ends[k]);
            }
            run_out_free(out, N);
            sv_engine_close(e);
        }
    }
    assert_int_equal(n_ended, 5 * 3 * N);
    run_out_free(ref, N);
    run_cases_free(c, N);
}

SV_TEST_MAIN(cmocka_unit_test(each_of_several_ends_it))
