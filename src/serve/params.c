/*
 * params.c - the fields of request bodies: one table a dialect, strict types and ranges, unknown names refused.
 *
 * Called by call.c, tokenize.c and the fuzz target. A null counts as absent, as in OpenAI's schema. What the model
 * decides (ids below the vocabulary, room in the context) is checked in sv_params_complete. Must not: know HTTP.
 */
#include "serve/impl.h"

#include <string.h>

enum {
    C = 1 << SV_CHAT,
    T = 1 << SV_COMPLETIONS,
    G = 1 << SV_GENERATE,
    S = 8, /* SGLang's sampling_params */
};

struct field {
    const char *name;
    int where;
    int (*read)(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e);
    size_t at;     /* of the number or flag in struct sv_params */
    double lo, hi;
    size_t has;    /* of a bool that is set, 0 = none */
};

/* ---------------------------------------------------------------- kinds of values */

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int wrong_type(struct sv_api_err *e, const char *name, const char *want, const json_t *v)
{
    sv_api_bad(e, name, "'%s' must be %s, not %s", name, want, type_name(v));
    e->code = "invalid_type";
    return -1;
}

static void *member(struct sv_params *p, size_t at)
{
    return (char *)p + at;
}

static void mark(struct sv_params *p, const struct field *f)
{
    if (f->has)
        *(bool *)member(p, f->has) = true;
}

static int integer_in(const struct field *f, json_t *v, int64_t *out, struct sv_api_err *e)
{
    if (!json_is_integer(v))
        return wrong_type(e, f->name, "an integer", v);
    *out = json_integer_value(v);
    if ((double)*out < f->lo || (double)*out > f->hi)
        return sv_api_bad(e, f->name, "'%s' must be in [%.0f, %.0f], not %lld", f->name, f->lo, f->hi,
                          (long long)*out);
    return 0;
}

static int read_i32(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    *(int32_t *)member(p, f->at) = (int32_t)x;
    mark(p, f);
    return 0;
}

/* -1 means off, as vLLM and SGLang write it. */
static int read_top_k(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    p->r.top_k = x < 0 ? 0 : x;
    mark(p, f);
    return 0;
}

static int read_seed(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    p->r.seed = (uint64_t)x;
    mark(p, f);
    return 0;
}

static int read_num(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_number(v))
        return wrong_type(e, f->name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= f->lo && x <= f->hi))
        return sv_api_bad(e, f->name, "'%s' must be in [%g, %g], not %g", f->name, f->lo, f->hi, x);
    *(double *)member(p, f->at) = x;
    mark(p, f);
    return 0;
}

static int read_bool(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_boolean(v))
        return wrong_type(e, f->name, "a boolean", v);
    *(bool *)member(p, f->at) = json_is_true(v);
    mark(p, f);
    return 0;
}

static int read_add_special(struct sv_params *p, const struct field *f, json_t *v,
                            struct sv_api_err *e)
{
    if (!json_is_boolean(v))
        return wrong_type(e, f->name, "a boolean", v);
    p->add_special = json_is_true(v);
    return 0;
}

static int read_str(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return wrong_type(e, f->name, "a string", v);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return sv_api_bad(e, f->name, "'%s' must not hold a NUL character", f->name);
    *(const char **)member(p, f->at) = json_string_value(v);
    return 0;
}

static int read_object(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_object(v))
        return wrong_type(e, f->name, "an object", v);
    *(json_t **)member(p, f->at) = v;
    return 0;
}

static int read_array(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return wrong_type(e, f->name, "an array", v);
    *(json_t **)member(p, f->at) = v;
    return 0;
}

/* Accepted because clients send it always, and of no effect here (docs/serving.md lists them). */
static int ignore(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    (void)p, (void)f, (void)v, (void)e;
    return 0;
}

/* Known, but only with the value that asks for nothing: lo holds the number or truth that is allowed. */
static int only(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    bool fine = json_is_boolean(v)  ? json_is_true(v) == (f->lo != 0)
                : json_is_number(v) ? json_number_value(v) == f->lo
                : json_is_string(v) ? json_string_length(v) == 0
                                    : json_array_size(v) == 0 && json_object_size(v) == 0;
    (void)p;
    if (fine)
        return 0;
    sv_api_bad(e, f->name, "'%s' is not supported with this value", f->name);
    e->code = "unsupported_parameter";
    return -1;
}

/* ---------------------------------------------------------------- values with a shape of their own */

static int add_stop(struct sv_params *p, json_t *v, const char *name, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return wrong_type(e, name, "a string or an array of strings", v);
    if (!json_string_length(v) || strlen(json_string_value(v)) != json_string_length(v))
        return sv_api_bad(e, name, "'%s' holds a text that is empty or has a NUL character", name);
    if (p->r.n_stop == SV_API_STOPS)
        return sv_api_bad(e, name, "'%s' has more than %d texts", name, SV_API_STOPS);
    p->stop[p->r.n_stop++] = json_string_value(v);
    return 0;
}

static int read_stop(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return add_stop(p, v, f->name, e);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (add_stop(p, json_array_get(v, i), f->name, e))
            return -1;
    return 0;
}

static int read_stop_ids(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return wrong_type(e, f->name, "an array of integers", v);
    if (json_array_size(v) > SV_API_STOP_IDS)
        return sv_api_bad(e, f->name, "'%s' has more than %d ids", f->name, SV_API_STOP_IDS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *id = json_array_get(v, i);
        if (!json_is_integer(id))
            return wrong_type(e, f->name, "an array of integers", id);
        json_int_t x = json_integer_value(id);
        if (x < 0 || x > INT32_MAX)
            return sv_api_bad(e, f->name, "'%s[%zu]' is no token id", f->name, i);
        p->stop_ids[p->r.n_stop_ids++] = (int32_t)x;
    }
    return 0;
}

/* {"id": bias}; ids are texts in JSON. */
static int read_bias(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return wrong_type(e, f->name, "an object", v);
    if (json_object_size(v) > SV_API_BIAS)
        return sv_api_bad(e, f->name, "'%s' has more than %d entries", f->name, SV_API_BIAS);
    json_object_foreach (v, key, value) {
        int64_t id = 0;
        size_t n = strlen(key);
        for (size_t i = 0; i < n && id <= INT32_MAX; i++)
            id = key[i] >= '0' && key[i] <= '9' ? id * 10 + (key[i] - '0') : INT64_C(1) << 40;
        if (!n || id > INT32_MAX)
            return sv_api_bad(e, f->name, "'%s': '%.40s' is no token id", f->name, key);
        if (!json_is_number(value))
            return wrong_type(e, f->name, "an object of numbers", value);
        double x = json_number_value(value);
        if (!(x >= -100 && x <= 100))
            return sv_api_bad(e, f->name, "'%s': %g for token %lld is not in [-100, 100]", f->name, x,
                              (long long)id);
        p->bias_ids[p->r.n_bias] = (int32_t)id;
        p->bias[p->r.n_bias++] = (float)x;
    }
    return 0;
}

static int read_stream_options(struct sv_params *p, const struct field *f, json_t *v,
                               struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return wrong_type(e, f->name, "an object", v);
    json_object_foreach (v, key, value) {
        char name[80];
        snprintf(name, sizeof name, "%s.%.40s", f->name, key);
        bool *to = strcmp(key, "include_usage") == 0            ? &p->include_usage
                   : strcmp(key, "continuous_usage_stats") == 0 ? &p->continuous_usage
                                                                : NULL;
        if (!to && strcmp(key, "include_obfuscation") != 0) {
            sv_api_bad(e, name, "Unknown parameter: '%s'", name);
            e->code = "unknown_parameter";
            return -1;
        }
        if (json_is_null(value))
            continue;
        if (!json_is_boolean(value))
            return wrong_type(e, name, "a boolean", value);
        if (to)
            *to = json_is_true(value);
    }
    return 0;
}

/* The legacy form: how many alternatives. */
static int read_logprobs_count(struct sv_params *p, const struct field *f, json_t *v,
                               struct sv_api_err *e)
{
    int64_t x;
    if (json_is_false(v))
        return 0;
    if (integer_in(f, v, &x, e))
        return -1;
    p->logprobs = true;
    p->n_top = (int32_t)x;
    return 0;
}

static int read_response_format(struct sv_params *p, const struct field *f, json_t *v,
                                struct sv_api_err *e)
{
    (void)p;
    if (!json_is_object(v))
        return wrong_type(e, f->name, "an object", v);
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && strcmp(type, "text") == 0)
        return 0;
    sv_api_bad(e, f->name, "'%s': only the type \"text\" is supported", f->name);
    e->code = "unsupported_parameter";
    return -1;
}

static int read_tool_choice(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    (void)p;
    if (json_is_string(v) && strcmp(json_string_value(v), "none") == 0)
        return 0;
    if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0)
        return 0; /* without tools; with them sv_params_read refuses */
    sv_api_bad(e, f->name, "'%s': tool calls are not supported", f->name);
    e->code = "unsupported_parameter";
    return -1;
}

static int read_modalities(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    (void)p;
    const char *first = json_string_value(json_array_get(v, 0));
    if (json_is_array(v) && json_array_size(v) == 1 && first && strcmp(first, "text") == 0)
        return 0;
    return sv_api_bad(e, f->name, "'%s': only [\"text\"] is supported", f->name);
}

static int read_spec_metrics(struct sv_params *p, const struct field *f, json_t *v,
                             struct sv_api_err *e)
{
    static const char *const names[] = {"none", "summary", "detailed"};
    const char *s = json_string_value(v);

    for (int i = 0; s && i < 3; i++)
        if (strcmp(s, names[i]) == 0) {
            p->spec = i;
            return 0;
        }
    return sv_api_bad(e, f->name, "'%s' must be \"none\", \"summary\" or \"detailed\"", f->name);
}

static int read_prompt(struct sv_params *p, const struct field *f, json_t *v, struct sv_api_err *e)
{
    if (p->prompt)
        return sv_api_bad(e, f->name, "text and input_ids exclude each other");
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(e, f->name, "a string or an array", v);
    p->prompt = v;
    return 0;
}

static int read_sampling_params(struct sv_params *p, const struct field *f, json_t *v,
                                struct sv_api_err *e);

/* ---------------------------------------------------------------- the tables */

#define P(x) offsetof(struct sv_params, x)
#define BIG 2147483647.0

static const struct field fields[] = {
    /* how to choose tokens */
    {"temperature", C | T | S, read_num, P(r.temperature), 0, 1000, P(has_temperature)},
    {"top_p", C | T | S, read_num, P(r.top_p), 0, 1, P(has_top_p)},
    {"top_k", C | T | S, read_top_k, 0, -1, BIG, P(has_top_k)},
    {"min_p", C | T | S, read_num, P(r.min_p), 0, 1, P(has_min_p)},
    {"typical_p", C | T, only, 0, 1, 0, 0},
    {"seed", C | T | S, read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"sampling_seed", S, read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"presence_penalty", C | T | S, read_num, P(r.presence_penalty), -2, 2, 0},
    {"frequency_penalty", C | T | S, read_num, P(r.frequency_penalty), -2, 2, 0},
    {"repetition_penalty", C | T | S, read_num, P(r.repetition_penalty), 1e-3, 2, 0},
    {"logit_bias", C | T | S, read_bias, 0, 0, 0, 0},
    {"width", C | T | S, read_i32, P(r.width), 0, 64, 0},
    /* how much, and when to end */
    {"n", C | T | S, read_i32, P(n), 1, 4096, 0},
    {"max_tokens", C | T, read_i32, P(r.max_tokens), 0, BIG, P(has_max_tokens)},
    {"max_completion_tokens", C, read_i32, P(r.max_tokens), 1, BIG, P(has_max_tokens)},
    {"max_new_tokens", S, read_i32, P(r.max_tokens), 0, BIG, P(has_max_tokens)},
    {"min_tokens", C | T, read_i32, P(r.min_tokens), 0, BIG, 0},
    {"min_new_tokens", S, read_i32, P(r.min_tokens), 0, BIG, 0},
    {"stop", C | T | S, read_stop, 0, 0, 0, 0},
    {"stop_token_ids", C | T | S, read_stop_ids, 0, 0, 0, 0},
    {"include_stop_str_in_output", C | T, read_bool, P(r.include_stop), 0, 0, 0},
    {"no_stop_trim", S, read_bool, P(r.include_stop), 0, 0, 0},
    {"ignore_eos", C | T | S, read_bool, P(r.ignore_eos), 0, 0, 0},
    /* what comes back */
    {"model", C | T | G, read_str, P(model), 0, 0, 0},
    {"stream", C | T | G, read_bool, P(stream), 0, 0, 0},
    {"stream_options", C | T, read_stream_options, 0, 0, 0, 0},
    {"logprobs", C, read_bool, P(logprobs), 0, 0, 0},
    {"top_logprobs", C, read_i32, P(n_top), 0, 20, 0},
    {"logprobs", T, read_logprobs_count, 0, 0, 20, 0},
    {"prompt_logprobs", C | T, read_i32, P(n_prompt_top), 0, 20, 0},
    {"echo", T, read_bool, P(echo), 0, 0, 0},
    {"echo", C, only, 0, 0, 0, 0},
    {"return_token_ids", C | T, read_bool, P(return_ids), 0, 0, 0},
    {"return_draft_flags", C | T, read_bool, P(return_draft), 0, 0, 0},
    {"spec_decode_metrics", C | T, read_spec_metrics, 0, 0, 0, 0},
    {"request_id", C | T, read_str, P(request_id), 0, 0, 0},
    {"rid", G, read_str, P(request_id), 0, 0, 0},
    /* the prompt */
    {"messages", C, read_array, P(messages), 0, 0, 0},
    {"tools", C, read_array, P(tools), 0, 0, 0},
    {"tool_choice", C, read_tool_choice, 0, 0, 0, 0},
    {"documents", C, read_array, P(documents), 0, 0, 0},
    {"chat_template_kwargs", C, read_object, P(template_args), 0, 0, 0},
    {"reasoning_effort", C, read_str, P(reasoning_effort), 0, 0, 0},
    {"add_generation_prompt", C, read_bool, P(add_generation_prompt), 0, 0, 0},
    {"add_special_tokens", C | T, read_add_special, 0, 0, 0, 0},
    {"continue_final_message", C, only, 0, 0, 0, 0},
    {"prompt", T, read_prompt, 0, 0, 0, 0},
    {"text", G, read_prompt, 0, 0, 0, 0},
    {"input_ids", G, read_prompt, 0, 0, 0, 0},
    {"sampling_params", G, read_sampling_params, 0, 0, 0, 0},
    {"suffix", T, only, 0, 0, 0, 0},
    {"return_logprob", G, only, 0, 0, 0, 0},
    {"top_logprobs_num", G, only, 0, 0, 0, 0},
    {"return_routed_experts", G, only, 0, 0, 0, 0},
    {"image_data", G, only, 0, 0, 0, 0},
    {"logprob_start_len", G, ignore, 0, 0, 0, 0},
    {"return_text_in_logprobs", G, ignore, 0, 0, 0, 0},
    {"stream_output", G, ignore, 0, 0, 0, 0},
    /* known and refused unless they ask for nothing */
    {"best_of", T, only, 0, 1, 0, 0},
    {"use_beam_search", C | T, only, 0, 0, 0, 0},
    {"length_penalty", C | T, only, 0, 1, 0, 0},
    {"skip_special_tokens", C | T | S, only, 0, 1, 0, 0},
    {"truncate_prompt_tokens", C | T, only, 0, -1, 0, 0},
    {"response_format", C | T, read_response_format, 0, 0, 0, 0},
    {"structured_outputs", C | T, only, 0, 0, 0, 0},
    {"guided_json", C | T, only, 0, 0, 0, 0},
    {"guided_regex", C | T, only, 0, 0, 0, 0},
    {"json_schema", S, only, 0, 0, 0, 0},
    {"regex", S, only, 0, 0, 0, 0},
    {"ebnf", S, only, 0, 0, 0, 0},
    {"functions", C, only, 0, 0, 0, 0},
    {"function_call", C, only, 0, 0, 0, 0},
    {"audio", C, only, 0, 0, 0, 0},
    {"web_search_options", C, only, 0, 0, 0, 0},
    {"modalities", C, read_modalities, 0, 0, 0, 0},
    /* of no effect */
    {"user", C | T, ignore, 0, 0, 0, 0},
    {"store", C, ignore, 0, 0, 0, 0},
    {"metadata", C, ignore, 0, 0, 0, 0},
    {"service_tier", C, ignore, 0, 0, 0, 0},
    {"safety_identifier", C, ignore, 0, 0, 0, 0},
    {"prompt_cache_key", C, ignore, 0, 0, 0, 0},
    {"prompt_cache_retention", C, ignore, 0, 0, 0, 0},
    {"prediction", C, ignore, 0, 0, 0, 0},
    {"verbosity", C, ignore, 0, 0, 0, 0},
    {"parallel_tool_calls", C, ignore, 0, 0, 0, 0},
    {"priority", C | T, ignore, 0, 0, 0, 0},
    {"spaces_between_special_tokens", C | T | S, ignore, 0, 0, 0, 0},
};

static const struct field *find(const char *name, int where)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if ((fields[i].where & where) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static int read_fields(struct sv_params *p, int where, json_t *object, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach (object, key, value) {
        const struct field *f = find(key, where);
        if (!f) {
            sv_api_bad(e, key, "Unknown parameter: '%.64s'", key);
            e->code = "unknown_parameter";
            return -1;
        }
        if (!json_is_null(value) && f->read(p, f, value, e))
            return -1;
    }
    return 0;
}

static int read_sampling_params(struct sv_params *p, const struct field *f, json_t *v,
                                struct sv_api_err *e)
{
    if (!json_is_object(v))
        return wrong_type(e, f->name, "an object", v);
    return read_fields(p, S, v, e);
}

/* ---------------------------------------------------------------- a body */

static int check_together(const struct sv_params *p, enum sv_dialect_kind kind, struct sv_api_err *e)
{
    if (kind == SV_CHAT && !p->messages)
        return sv_api_bad(e, "messages", "'messages' is missing");
    if (kind == SV_CHAT && !json_array_size(p->messages))
        return sv_api_bad(e, "messages", "'messages' is empty");
    if (kind == SV_COMPLETIONS && !p->prompt)
        return sv_api_bad(e, "prompt", "'prompt' is missing");
    if (kind == SV_GENERATE && !p->prompt)
        return sv_api_bad(e, "text", "'text' or 'input_ids' is missing");
    if (kind == SV_CHAT && p->n_top && !p->logprobs)
        return sv_api_bad(e, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (kind != SV_COMPLETIONS && p->has_max_tokens && !p->r.max_tokens)
        return sv_api_bad(e, kind == SV_CHAT ? "max_tokens" : "max_new_tokens",
                          "the longest answer must be at least 1 token");
    if (json_array_size(p->tools))
        return sv_api_bad(e, "tools", "'tools': tool calls are not supported");
    if (p->stream && p->n_prompt_top >= 0 && kind == SV_COMPLETIONS && p->echo)
        return sv_api_bad(e, "stream", "'prompt_logprobs' with 'echo' cannot be streamed");
    return 0;
}

int sv_params_read(struct sv_params *p, enum sv_dialect_kind kind, json_t *body, struct sv_api_err *e)
{
    memset(p, 0, sizeof *p);
    p->n = 1;
    p->n_prompt_top = -1;
    p->spec = -1;
    p->add_special = -1;
    p->add_generation_prompt = true;
    p->r.top_p = 1;
    /* "tools" with tool_choice "none" only lets the template see them; without it they are refused. */
    const char *choice = json_string_value(json_object_get(body, "tool_choice"));
    if (read_fields(p, 1 << kind, body, e))
        return -1;
    json_t *tools = p->tools;
    if (choice && strcmp(choice, "none") == 0)
        p->tools = NULL;
    if (check_together(p, kind, e))
        return -1;
    p->tools = tools;
    return 0;
}

static int check_ids(const int32_t *ids, int32_t n, const char *name, int32_t vocab,
                     struct sv_api_err *e)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return sv_api_bad(e, name, "'%s': token %d is outside [0, %d)", name, ids[i], vocab);
    return 0;
}

static void default_sampling(struct sv_params *p, const struct sv_gen_config *g, bool use)
{
    if (!p->has_temperature)
        p->r.temperature = use ? (double)g->temperature : 1;
    if (!p->has_top_p && use)
        p->r.top_p = (double)g->top_p;
    if (!p->has_top_k && use)
        p->r.top_k = g->top_k;
    if (!p->has_min_p && use)
        p->r.min_p = (double)g->min_p;
}

static void default_lengths(struct sv_params *p, enum sv_dialect_kind kind)
{
    if (p->has_max_tokens) {
        p->discard = !p->r.max_tokens; /* legacy: only the prompt's log probabilities are wanted */
        if (p->discard)
            p->r.max_tokens = 1;
    } else if (kind == SV_COMPLETIONS) {
        p->r.max_tokens = 16; /* OpenAI's default */
    } else if (kind == SV_GENERATE) {
        p->r.max_tokens = 128; /* SGLang's */
    }
}

int sv_params_complete(struct sv_params *p, enum sv_dialect_kind kind, const struct sv_serve_model *m,
                       const struct sv_serve_options *o, struct sv_api_err *e)
{
    int32_t limit = o->max_tokens ? o->max_tokens : m->info.context;

    default_sampling(p, &m->gen, !o->no_generation_config);
    default_lengths(p, kind);
    if (p->r.max_tokens > limit && o->max_tokens)
        return sv_api_bad(e, kind == SV_GENERATE ? "max_new_tokens" : "max_tokens",
                          "an answer of %d tokens is longer than the server allows (%d)",
                          p->r.max_tokens, limit);
    if (!p->r.max_tokens && o->max_tokens)
        p->r.max_tokens = o->max_tokens;
    if (p->r.width > m->info.width)
        return sv_api_bad(e, "width", "'width' must be at most %d here, not %d", m->info.width,
                          p->r.width);
    if (check_ids(p->stop_ids, p->r.n_stop_ids, "stop_token_ids", m->info.vocab_size, e) ||
        check_ids(p->bias_ids, p->r.n_bias, "logit_bias", m->info.vocab_size, e))
        return -1;
    p->r.stop = p->stop;
    p->r.stop_ids = p->stop_ids;
    p->r.bias_ids = p->bias_ids;
    p->r.bias = p->bias;
    p->r.logprobs = p->logprobs;
    p->r.prompt_logprobs = p->n_prompt_top >= 0 || (p->echo && p->logprobs);
    p->r.n_top_logprobs = p->n_prompt_top > p->n_top ? p->n_prompt_top : p->n_top;
    if (p->spec < 0)
        p->spec = o->spec_metrics;
    if (o->force_usage)
        p->include_usage = true;
    return 0;
}
