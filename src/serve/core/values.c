/*
 * values.c - readers of fields' values: strict types and ranges; each error names its field.
 *
 * Called by params.c through its table. Must not: know which request has which field.
 */
#include "serve/core/fields.h"

#include <math.h>
#include <openssl/sha.h>
#include <string.h>

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

int sv_wrong_type(struct sv_api_err *e, const char *name, const char *want, const json_t *v)
{
    sv_api_bad(e, name, "'%s' must be %s, not %s", name, want, type_name(v));
    e->code = "invalid_type";
    return -1;
}

bool sv_is_one_of(const char *s, const char *const *names)
{
    for (size_t i = 0; s && names[i]; i++)
        if (strcmp(s, names[i]) == 0)
            return true;
    return false;
}

bool sv_json_is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

bool sv_json_is_none(const json_t *v)
{
    return !v || json_is_null(v);
}

static void *member(struct sv_params *p, size_t at)
{
    return (char *)p + at;
}

static void mark(struct sv_params *p, const struct sv_field *f)
{
    if (f->has)
        *(bool *)member(p, f->has) = true;
}

/* Accepts 4.0, which Python's sliders and some JSON writers produce. */
static bool is_integer(const json_t *v, int64_t *out)
{
    double x = json_real_value(v);

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v) || !(x > -9e15 && x < 9e15) || x != (double)(int64_t)x)
        return false;
    *out = (int64_t)x;
    return true;
}

static int integer_in(const struct sv_field *f, json_t *v, int64_t *out, struct sv_api_err *e)
{
    *out = 0;
    if (json_is_real(v) && fabs(json_real_value(v)) >= 9e15)
        return sv_api_bad(e, f->name, "'%s' is too large", f->name);
    if (!is_integer(v, out))
        return sv_wrong_type(e, f->name, "an integer", v);
    if ((double)*out < f->lo || (double)*out > f->hi)
        return sv_api_bad(e, f->name, "'%s' must be in [%.0f, %.0f], not %lld", f->name, f->lo,
                          f->hi, (long long)*out);
    return 0;
}

int sv_read_i32(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    *(int32_t *)member(p, f->at) = (int32_t)x;
    mark(p, f);
    return 0;
}

/* -1 means off, as vLLM and SGLang write it. */
int sv_read_top_k(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    p->r.top_k = x < 0 ? 0 : x;
    mark(p, f);
    return 0;
}

int sv_read_num(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_number(v))
        return sv_wrong_type(e, f->name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= f->lo && x <= f->hi))
        return sv_api_bad(e, f->name, "'%s' must be in [%g, %g], not %g", f->name, f->lo, f->hi, x);
    *(double *)member(p, f->at) = x;
    mark(p, f);
    return 0;
}

int sv_read_seed(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (integer_in(f, v, &x, e))
        return -1;
    p->r.seed = (uint64_t)x;
    /* -1 asks for a random seed, as in vLLM and llama.cpp; llama.cpp's own clients (at) also write
     * it as 32 bits. */
    *(bool *)member(p, f->has) = x != -1 && !(f->at && x == UINT32_MAX);
    return 0;
}

/* The longest answer (at: zero is refused). -1, as in llama.cpp, and numbers beyond any context
 * mean as long as possible. */
int sv_read_length(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    int64_t x;
    if (json_is_real(v) && json_real_value(v) >= 9e15)
        x = INT32_MAX;
    else if (integer_in(f, v, &x, e))
        return -1;
    if (x < -1 || (x == 0 && f->at))
        return sv_api_bad(e, f->name, "'%s' must be at least 1, or -1 for as long as possible",
                          f->name);
    p->r.max_tokens = x < 0 || x > INT32_MAX ? INT32_MAX : (int32_t)x;
    mark(p, f);
    return 0;
}

/* SGLang's: a name, or one for each prompt. */
int sv_read_rid(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return sv_wrong_type(e, f->name, "a string or an array of strings",
                                 json_array_get(v, i));
    if (json_is_array(v)) {
        p->rids = v;
        return 0;
    }
    if (!json_is_string(v))
        return sv_wrong_type(e, f->name, "a string or an array of strings", v);
    p->request_id = json_string_value(v);
    return 0;
}

/* A cryptographic digest: a second text with the same digest would give access to the first one's
 * prefixes. */
int sv_read_cache_salt(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];

    if (!json_is_string(v))
        return sv_wrong_type(e, f->name, "a string", v);
    if (!json_string_length(v))
        return sv_api_bad(e, f->name, "'%s' must not be empty", f->name);
    SHA256((const unsigned char *)json_string_value(v), json_string_length(v), digest);
    memcpy(p->r.cache_salt, digest, sizeof p->r.cache_salt);
    return 0;
}

/* OpenAI allows 0, which leaves only the most probable token. */
int sv_read_top_p(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (sv_read_num(p, f, v, e))
        return -1;
    p->r.top_p = p->r.top_p > 0 ? p->r.top_p : 1e-9;
    return 0;
}

int sv_read_bool(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_boolean(v))
        return sv_wrong_type(e, f->name, "a boolean", v);
    *(bool *)member(p, f->at) = json_is_true(v);
    mark(p, f);
    return 0;
}

int sv_read_add_special(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    if (!json_is_boolean(v))
        return sv_wrong_type(e, f->name, "a boolean", v);
    p->add_special = json_is_true(v);
    return 0;
}

int sv_read_str(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return sv_wrong_type(e, f->name, "a string", v);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return sv_api_bad(e, f->name, "'%s' must not hold a NUL character", f->name);
    *(const char **)member(p, f->at) = json_string_value(v);
    return 0;
}

int sv_read_object(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    *(json_t **)member(p, f->at) = v;
    return 0;
}

int sv_read_array(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return sv_wrong_type(e, f->name, "an array", v);
    *(json_t **)member(p, f->at) = v;
    return 0;
}

int sv_read_text(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return sv_wrong_type(e, f->name, "a string", v);
    *(json_t **)member(p, f->at) = v;
    return 0;
}

/* The value itself, or what all values of a list are; NULL, and the error, if they differ. */
static json_t *same_of_each(const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    for (size_t i = 1; i < json_array_size(v); i++)
        if (!json_equal(json_array_get(v, 0), json_array_get(v, i))) {
            sv_api_bad(e, f->name,
                       "'%s': one value for all prompts is needed, and '%s[%zu]' differs", f->name,
                       f->name, i);
            e->code = "unsupported_parameter";
            return NULL;
        }
    return json_array_size(v) ? json_array_get(v, 0) : v;
}

int sv_read_each_bool(struct sv_params *p, const struct sv_field *f, json_t *v,
                      struct sv_api_err *e)
{
    v = same_of_each(f, v, e);
    return v ? sv_read_bool(p, f, v, e) : -1;
}

int sv_read_each_i32(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    v = same_of_each(f, v, e);
    return v ? sv_read_i32(p, f, v, e) : -1;
}

/* ------------------------------------------------------------- values with a shape of their own */

static int add_stop(struct sv_params *p, json_t *v, const char *name, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return sv_wrong_type(e, name, "a string or an array of strings", v);
    if (!json_string_length(v) || strlen(json_string_value(v)) != json_string_length(v))
        return sv_api_bad(e, name, "'%s' holds a text that is empty or has a NUL character", name);
    if (p->r.n_stop == SV_API_STOPS)
        return sv_api_bad(e, name, "'%s' has more than %d texts", name, SV_API_STOPS);
    p->stop[p->r.n_stop++] = json_string_value(v);
    return 0;
}

int sv_read_stop(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return add_stop(p, v, f->name, e);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (add_stop(p, json_array_get(v, i), f->name, e))
            return -1;
    return 0;
}

/* SGLang's; sv_stop_regex_open compiles them. */
int sv_read_stop_regex(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (n > SV_API_REGEXES)
        return sv_api_bad(e, f->name, "'%s' has more than %d expressions", f->name, SV_API_REGEXES);
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one))
            return sv_wrong_type(e, f->name, "a string or an array of strings", one);
        if (!sv_json_is_text(one))
            return sv_api_bad(e, f->name, "'%s' holds a NUL character", f->name);
        p->stop_regex[p->n_stop_regex++] = json_string_value(one);
    }
    return 0;
}

int sv_read_stop_ids(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (!json_is_array(v))
        return sv_wrong_type(e, f->name, "an array of integers", v);
    if (json_array_size(v) > SV_API_STOP_IDS)
        return sv_api_bad(e, f->name, "'%s' has more than %d ids", f->name, SV_API_STOP_IDS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *id = json_array_get(v, i);
        int64_t x;
        if (!is_integer(id, &x))
            return sv_wrong_type(e, f->name, "an array of integers", id);
        if (x < 0 || x > INT32_MAX)
            return sv_api_bad(e, f->name, "'%s[%zu]' is no token id", f->name, i);
        p->stop_ids[p->r.n_stop_ids++] = (int32_t)x;
    }
    return 0;
}

static int add_bias(struct sv_params *p, const char *name, int64_t id, double x,
                    struct sv_api_err *e)
{
    const struct sv_range range = {SV_RANGE_BIAS};

    if (!(x >= range.least && x <= range.most))
        return sv_api_bad(e, name, "'%s': %g for token %lld is not in [%g, %g]", name, x,
                          (long long)id, range.least, range.most);
    p->bias_ids[p->r.n_bias] = (int32_t)id;
    p->bias[p->r.n_bias++] = (float)x;
    return 0;
}

/* llama-server's shape: [[id, bias], ...]; false excludes the token. */
static int read_bias_list(struct sv_params *p, const char *name, const json_t *v,
                          struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *pair = json_array_get(v, i), *value = json_array_get(pair, 1);
        int64_t id;
        if (json_array_size(pair) != 2 || !is_integer(json_array_get(pair, 0), &id) || id < 0 ||
            id > INT32_MAX)
            return sv_api_bad(e, name, "'%s[%zu]' must be [token id, bias]", name, i);
        if (!json_is_number(value) && !json_is_false(value))
            return sv_api_bad(e, name, "'%s[%zu][1]' must be a number or false", name, i);
        if (add_bias(p, name, id, json_is_false(value) ? -100 : json_number_value(value), e))
            return -1;
    }
    return 0;
}

/* {"id": bias}, where ids are strings. */
int sv_read_bias(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    if (json_object_size(v) > SV_MAX_BIAS || json_array_size(v) > SV_MAX_BIAS)
        return sv_api_bad(e, f->name, "'%s' has more than %d entries", f->name, SV_MAX_BIAS);
    if (json_is_array(v))
        return read_bias_list(p, f->name, v, e);
    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        int64_t id = 0;
        size_t n = strlen(key);
        for (size_t i = 0; i < n && id <= INT32_MAX; i++)
            id = key[i] >= '0' && key[i] <= '9' ? id * 10 + (key[i] - '0') : INT64_C(1) << 40;
        if (!n || id > INT32_MAX || (n > 1 && *key == '0')) /* "05" would be a duplicate of 5 */
            return sv_api_bad(e, f->name, "'%s': '%.40s' is no token id", f->name, key);
        if (!json_is_number(value))
            return sv_wrong_type(e, f->name, "an object of numbers", value);
        if (add_bias(p, f->name, id, json_number_value(value), e))
            return -1;
    }
    return 0;
}

int sv_read_samplers(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } known[] = {{"temperature", SV_SAMPLER_TEMPERATURE},
                 {"top_k", SV_SAMPLER_TOP_K},
                 {"top_p", SV_SAMPLER_TOP_P},
                 {"min_p", SV_SAMPLER_MIN_P},
                 {"penalties", SV_SAMPLER_PENALTIES},
                 {"dry", SV_SAMPLER_OFF},
                 {"typ_p", SV_SAMPLER_OFF},
                 {"typical_p", SV_SAMPLER_OFF},
                 {"xtc", SV_SAMPLER_OFF},
                 {"top_n_sigma", SV_SAMPLER_OFF},
                 {"infill", SV_SAMPLER_OFF}};

    if (!json_is_array(v) && !(json_is_string(v) && !json_string_length(v)))
        return sv_wrong_type(e, f->name, "an array of names", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        uint32_t bit = 0;
        for (size_t k = 0; name && k < sizeof known / sizeof known[0]; k++)
            bit |= strcmp(name, known[k].name) == 0 ? known[k].bit : 0;
        if (!bit)
            return sv_api_bad(e, f->name, "'%s[%zu]' is no sampler's name", f->name, i);
        p->samplers |= bit;
    }
    return 0;
}

int sv_read_stream_options(struct sv_params *p, const struct sv_field *f, json_t *v,
                           struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        char name[80];
        snprintf(name, sizeof name, "%s.%.40s", f->name, key);
        bool *to = strcmp(key, "include_usage") == 0            ? &p->include_usage
                   : strcmp(key, "continuous_usage_stats") == 0 ? &p->continuous_usage
                                                                : NULL;
        if (json_is_null(value))
            continue;
        if (!to && strcmp(key, "include_obfuscation") != 0) {
            if (sv_unknown_field(p->ignored, "stream_options.", key, e))
                return -1;
        } else if (!json_is_boolean(value))
            return sv_wrong_type(e, name, "a boolean", value);
        if (to)
            *to = json_is_true(value);
    }
    return 0;
}

/* The number of alternatives, as in OpenAI's completions. */
int sv_read_logprobs_count(struct sv_params *p, const struct sv_field *f, json_t *v,
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

int sv_read_truncation_side(struct sv_params *p, const struct sv_field *f, json_t *v,
                            struct sv_api_err *e)
{
    const char *side = json_string_value(v);

    if (!side || (strcmp(side, "left") != 0 && strcmp(side, "right") != 0))
        return sv_api_bad(e, f->name, "'%s' must be \"left\" or \"right\"", f->name);
    p->truncate_right = *side == 'r';
    return 0;
}

/* A list; token_lists.c reads its entries. */
int sv_read_logprob_ids(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    if (!json_is_array(v))
        return sv_wrong_type(e, f->name, "an array of token ids", v);
    p->logprob_ids = v;
    p->logprob_ids_name = f->name;
    return 0;
}

int sv_read_modalities(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e)
{
    (void)p;
    const char *first = json_string_value(json_array_get(v, 0));
    if (json_is_array(v) && json_array_size(v) == 1 && first && strcmp(first, "text") == 0)
        return 0;
    return sv_api_bad(e, f->name, "'%s': only [\"text\"] is supported", f->name);
}

int sv_read_spec_metrics(struct sv_params *p, const struct sv_field *f, json_t *v,
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

int sv_read_prompt(struct sv_params *p, const struct sv_field *f, json_t *v, struct sv_api_err *e)
{
    if (p->prompt)
        return sv_api_bad(e, f->name, "text and input_ids exclude each other");
    if (!json_is_string(v) && !json_is_array(v))
        return sv_wrong_type(e, f->name, "a string or an array", v);
    p->prompt = v;
    p->prompt_name = f->name;
    return 0;
}
