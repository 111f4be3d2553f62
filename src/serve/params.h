/*
 * params.h - a row of the table of fields, and how the value of one is read.
 *
 * Included by params.c (the table) and values.c (the readers) alone. Must not: be seen by others.
 */
#ifndef SV_SERVE_PARAMS_H
#define SV_SERVE_PARAMS_H

#include "serve/impl.h"

struct sv_field;
typedef int sv_read_fn(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e);

struct sv_field {
    const char *name;
    int where;
    sv_read_fn *read;
    size_t at; /* of the number or flag in struct sv_params, or what the reader says */
    double lo, hi;
    size_t has; /* of a bool that is set, 0 = none */
};

/* Numbers in [lo, hi], flags, texts and JSON, put at `at`. */
sv_read_fn sv_read_i32, sv_read_num, sv_read_bool, sv_read_str, sv_read_object, sv_read_array;
/* Values with a meaning or shape of their own. */
sv_read_fn sv_read_top_k, sv_read_top_p, sv_read_seed, sv_read_length, sv_read_add_special,
    sv_read_stop, sv_read_stop_ids, sv_read_bias, sv_read_stream_options, sv_read_logprobs_count,
    sv_read_response_format, sv_read_tool_choice, sv_read_modalities, sv_read_spec_metrics,
    sv_read_prompt, sv_read_reasoning_format, sv_read_functions, sv_read_samplers, sv_read_rid,
    sv_read_cache_salt, sv_read_asked, sv_read_stop_regex, sv_read_truncation_side;
/* What an answer must be (forms.c): the field's kind is enum sv_form_kind in `at`. */
sv_read_fn sv_read_form, sv_read_structured_outputs, sv_read_text_settings;
/* The Responses API's (responses_read.c). */
sv_read_fn sv_read_input, sv_read_background, sv_read_truncation, sv_read_include, sv_read_metadata,
    sv_read_reasoning, sv_read_flat_tools, sv_read_echoed, sv_read_max_tool_calls;
/* A text as JSON, with whatever it holds. One value for all prompts, or a list of the same for
 * each. */
sv_read_fn sv_read_text, sv_read_each_bool, sv_read_each_i32;
/* Any value; only one that asks for nothing: false, empty, or the number or truth in lo. */
sv_read_fn sv_read_nothing, sv_read_neutral;
/* What sv_read_samplers finds named. */
enum {
    SV_SAMPLER_TEMPERATURE = 1,
    SV_SAMPLER_TOP_K = 2,
    SV_SAMPLER_TOP_P = 4,
    SV_SAMPLER_MIN_P = 8,
    SV_SAMPLER_PENALTIES = 16,
    SV_SAMPLER_OFF = 32 /* known, and off whether it is named or not */
};
/* The value itself, or what all of a list are; NULL, and the error, if they differ. */
json_t *sv_same_of_each(const struct sv_field *f, json_t *v, struct sv_api_err *e);
/* A text without NUL characters; absent or null; among names, which end with NULL. */
bool sv_json_is_text(const json_t *v);
bool sv_json_is_none(const json_t *v);
bool sv_is_one_of(const char *s, const char *const *names);
/* Fails. */
int sv_wrong_type(struct sv_api_err *e, const char *name, const char *want, const json_t *v);

#endif
