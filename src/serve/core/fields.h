/*
 * fields.h - a row of the table of fields, and the readers of fields' values.
 *
 * Included by params.c (the table), by the files that have readers, and by dialects with rows of
 * their own. Must not: be included by others.
 */
#ifndef SV_SERVE_CORE_FIELDS_H
#define SV_SERVE_CORE_FIELDS_H

#include "serve/core/error.h"
#include "serve/core/params.h"

struct sv_field;
typedef int sv_read_fn(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e);

struct sv_field {
    const char *name;
    int where; /* bits of the dialects that have it; 0 in a dialect's own rows */
    sv_read_fn *read;
    size_t at;     /* offset of the value in struct sv_params, or an argument of the reader */
    double lo, hi; /* range of a number */
    size_t has;    /* offset of a bool that is set when the field is given; 0 = none */
};

/* Numbers in [lo, hi], flags, strings without NUL and JSON, stored at `at`. */
sv_read_fn sv_read_i32, sv_read_num, sv_read_bool, sv_read_str, sv_read_object, sv_read_array;
/* A string as JSON, with any characters. */
sv_read_fn sv_read_text;
/* One value for all prompts, or a list with the same value for each. */
sv_read_fn sv_read_each_bool, sv_read_each_i32;
/* Values with a meaning or shape of their own (values.c, tools.c). */
sv_read_fn sv_read_top_k, sv_read_top_p, sv_read_seed, sv_read_length, sv_read_add_special,
    sv_read_stop, sv_read_stop_ids, sv_read_bias, sv_read_stream_options, sv_read_logprobs_count,
    sv_read_tool_choice, sv_read_modalities, sv_read_spec_metrics, sv_read_prompt,
    sv_read_reasoning_format, sv_read_functions, sv_read_samplers, sv_read_rid, sv_read_cache_salt,
    sv_read_logprob_ids, sv_read_stop_regex, sv_read_truncation_side;
/* Constraints (constraint.c). at: enum sv_constraint_kind, for sv_read_constraint. */
sv_read_fn sv_read_constraint, sv_read_response_format, sv_read_structured_outputs,
    sv_read_text_settings;

/* Samplers that sv_read_samplers can find. */
enum {
    SV_SAMPLER_TEMPERATURE = 1,
    SV_SAMPLER_TOP_K = 2,
    SV_SAMPLER_TOP_P = 4,
    SV_SAMPLER_MIN_P = 8,
    SV_SAMPLER_PENALTIES = 16,
    SV_SAMPLER_OFF = 32 /* a known sampler that is always off */
};

bool sv_json_is_text(const json_t *v);                      /* a string without NUL */
bool sv_json_is_none(const json_t *v);                      /* absent or null */
bool sv_is_one_of(const char *s, const char *const *names); /* names end with NULL */
/* Returns -1 with the error of a wrong type. */
int sv_wrong_type(struct sv_api_err *e, const char *name, const char *want, const json_t *v);

#endif
