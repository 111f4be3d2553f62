/*
 * params.c - the fields of request bodies: one table for all dialects. Unknown fields are ignored
 * or refused.
 *
 * Called by call.c, by endpoints and by check.c. A null counts as absent, as in OpenAI's schema.
 * What depends on the model (ids below the vocabulary, room in the context) is checked in
 * sv_params_complete. Must not: know HTTP.
 */
#include "serve/core/call.h"
#include "serve/core/fields.h"
#include "serve/core/log.h"
#include "serve/core/tools.h"

#include <math.h>
#include <string.h>

enum {
    C = 1 << SV_CHAT,
    M = 1 << SV_MESSAGES,
    R = 1 << SV_RESPONSES,
    T = 1 << SV_COMPLETIONS,
    G = 1 << SV_GENERATE,
    I = 1 << SV_INFILL,
    L = 1 << SV_LLAMA | I,
    S = 1 << 16, /* SGLang's sampling_params */
};

#define MAX_IGNORED_BYTES 1024 /* of names of unknown fields in one request */

static int read_sampling_params(struct sv_params *p, const struct sv_field *f, json_t *v,
                                struct sv_api_err *e);

/* ---------------------------------------------------------------- the tables */

#define P(x) offsetof(struct sv_params, x)
#define BIG 2147483647.0

static const struct sv_field fields[] = {
    /* sampling */
    {"temperature", C | M | R | T | L | S, sv_read_num, P(r.temperature), SV_RANGE_TEMPERATURE,
     P(has_temperature)},
    {"top_p", C | M | R | T | L | S, sv_read_top_p, P(r.top_p), SV_RANGE_TOP_P, P(has_top_p)},
    {"top_k", C | M | R | T | L | S, sv_read_top_k, 0, SV_RANGE_TOP_K, P(has_top_k)},
    {"min_p", C | M | R | T | L | S, sv_read_num, P(r.min_p), SV_RANGE_MIN_P, P(has_min_p)},
    {"seed", C | M | R | T | S, sv_read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"seed", L, sv_read_seed, 1, -9.3e18, 9.3e18, P(has_seed)},
    {"sampling_seed", C | R | T | S, sv_read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"presence_penalty", C | M | R | T | L | S, sv_read_num, P(r.presence_penalty),
     SV_RANGE_PENALTY, 0},
    {"frequency_penalty", C | M | R | T | L | S, sv_read_num, P(r.frequency_penalty),
     SV_RANGE_PENALTY, 0},
    {"repetition_penalty", C | M | R | T | L | S, sv_read_num, P(r.repetition_penalty),
     SV_RANGE_REPETITION, P(has_repetition)},
    {"repeat_penalty", C | R | T | L, sv_read_num, P(repeat_penalty), SV_RANGE_REPETITION,
     P(has_repetition)},
    {"repeat_last_n", C | R | T | L, sv_read_i32, P(repeat_last_n), -1, BIG, 0},
    {"logit_bias", C | M | R | T | L | S, sv_read_bias, 0, 0, 0, 0},
    {"bad_words", C | M | R | T, sv_read_array, P(bad_words), 0, 0, 0},
    {"allowed_token_ids", C | M | R | T, sv_read_array, P(allowed_ids), 0, 0, 0},
    {"width", C | M | R | T | L | S, sv_read_i32, P(r.width), 0, SV_MAX_BLOCK, 0},
    /* length and stops */
    {"n", C | T | L | S, sv_read_i32, P(n), 1, 4096, 0},
    {"max_tokens", C | M | T | L, sv_read_length, 0, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"max_completion_tokens", C | T, sv_read_length, 1, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"max_new_tokens", S, sv_read_length, 0, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"n_predict", C | T, sv_read_length, 1, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"n_predict", L, sv_read_length, 0, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"n_cmpl", L, sv_read_i32, P(n), 1, 4096, 0},
    {"n_indent", L, sv_read_i32, P(n_indent), 0, BIG, 0},
    {"t_max_predict_ms", L, sv_read_i32, P(max_ms), -1, BIG, 0},
    {"samplers", C | T | L, sv_read_samplers, 0, 0, 0, 0},
    {"min_tokens", C | M | R | T | L, sv_read_i32, P(r.min_tokens), 0, BIG, 0},
    {"min_new_tokens", S, sv_read_i32, P(r.min_tokens), 0, BIG, 0},
    {"stop", C | R | T | L | S, sv_read_stop, 0, 0, 0, 0},
    {"stop_token_ids", C | M | R | T | L | S, sv_read_stop_ids, 0, 0, 0, 0},
    {"stop_regex", C | T | S, sv_read_stop_regex, 0, 0, 0, 0},
    {"include_stop_str_in_output", C | R | T | L, sv_read_bool, P(r.include_stop), 0, 0, 0},
    {"no_stop_trim", C | R | T | S, sv_read_bool, P(r.include_stop), 0, 0, 0},
    {"ignore_eos", C | M | R | T | L | S, sv_read_bool, P(r.ignore_eos), 0, 0, 0},
    /* constraints */
    {"response_format", C | T, sv_read_response_format, 0, 0, 0, 0},
    {"structured_outputs", C | R | T, sv_read_structured_outputs, 0, 0, 0, 0},
    {"guided_json", C | R | T, sv_read_constraint, SV_CONSTRAINT_SCHEMA, 0, 0, 0},
    {"guided_regex", C | R | T, sv_read_constraint, SV_CONSTRAINT_REGEX, 0, 0, 0},
    {"guided_choice", C | R | T, sv_read_constraint, SV_CONSTRAINT_CHOICE, 0, 0, 0},
    {"guided_grammar", C | R | T, sv_read_constraint, SV_CONSTRAINT_GBNF, 0, 0, 0},
    {"json_schema", C | R | T | L | S, sv_read_constraint, SV_CONSTRAINT_SCHEMA, 0, 0, 0},
    {"regex", C | R | T | S, sv_read_constraint, SV_CONSTRAINT_REGEX, 0, 0, 0},
    {"ebnf", C | R | T | S, sv_read_constraint, SV_CONSTRAINT_GBNF, 0, 0, 0},
    {"grammar", C | R | T | L, sv_read_constraint, SV_CONSTRAINT_GBNF, 0, 0, 0},
    /* what the answer contains */
    {"model", C | M | R | T | G | L, sv_read_str, P(model), 0, 0, 0},
    {"stream", C | M | R | T | G | L, sv_read_bool, P(stream), 0, 0, 0},
    {"stream_options", C | R | T, sv_read_stream_options, 0, 0, 0, 0},
    {"logprobs", C, sv_read_bool, P(logprobs), 0, 0, 0},
    {"top_logprobs", C | R, sv_read_i32, P(n_top), 0, SV_MAX_TOP, 0},
    {"logprobs", T, sv_read_logprobs_count, 0, 0, SV_MAX_TOP, 0},
    {"prompt_logprobs", C | T, sv_read_i32, P(n_prompt_top), 0, SV_MAX_TOP, 0},
    {"echo", T, sv_read_bool, P(echo), 0, 0, 0},
    {"n_probs", L, sv_read_i32, P(n_top), 0, SV_MAX_TOP, 0},
    {"return_logprob", G, sv_read_each_bool, P(logprobs), 0, 0, 0},
    {"top_logprobs_num", G, sv_read_each_i32, P(n_top), 0, SV_MAX_TOP, 0},
    {"logprob_start_len", G, sv_read_each_i32, P(logprob_start), -1, BIG, 0},
    {"token_ids_logprob", G, sv_read_logprob_ids, 0, 0, 0, 0},
    {"logprob_token_ids", C | T, sv_read_logprob_ids, 0, 0, 0, 0},
    {"return_text_in_logprobs", G, sv_read_bool, P(logprob_text), 0, 0, 0},
    {"return_token_ids", C | T, sv_read_bool, P(return_ids), 0, 0, 0},
    {"return_prompt_text", C, sv_read_bool, P(return_prompt_text), 0, 0, 0},
    {"return_tokens", L, sv_read_bool, P(return_ids), 0, 0, 0},
    {"return_tokens_as_token_ids", C | T, sv_read_bool, P(ids_as_tokens), 0, 0, 0},
    {"response_fields", L, sv_read_array, P(response_fields), 0, 0, 0},
    {"return_draft_flags", C | T, sv_read_bool, P(return_draft), 0, 0, 0},
    {"spec_decode_metrics", C | M | R | T, sv_read_spec_metrics, 0, 0, 0, 0},
    {"request_id", C | M | R | T, sv_read_str, P(request_id), 0, 0, 0},
    {"rid", C | M | R | T, sv_read_str, P(request_id), 0, 0, 0},
    {"rid", G, sv_read_rid, 0, 0, 0, 0},
    {"return_prompt_token_ids", C | G, sv_read_bool, P(return_prompt_ids), 0, 0, 0},
    /* the prompt */
    {"messages", C, sv_read_array, P(messages), 0, 0, 0},
    {"tools", C, sv_read_array, P(tools), 0, 0, 0},
    {"tool_choice", C, sv_read_tool_choice, 0, 0, 0, 0},
    {"parallel_tool_calls", C | R, sv_read_bool, P(parallel), 0, 0, 0},
    {"separate_reasoning", C | R, sv_read_bool, P(separate_reasoning), 0, 0, 0},
    {"include_reasoning", C | R, sv_read_bool, P(include_reasoning), 0, 0, 0},
    {"stream_reasoning", C | R, sv_read_bool, P(stream_reasoning), 0, 0, 0},
    {"reasoning_format", C | R, sv_read_reasoning_format, 0, 0, 0, 0},
    {"documents", C | R, sv_read_array, P(documents), 0, 0, 0},
    {"chat_template_kwargs", C | M | R, sv_read_object, P(template_args), 0, 0, 0},
    {"reasoning_effort", C, sv_read_str, P(reasoning_effort), 0, 0, 0},
    {"add_generation_prompt", C, sv_read_bool, P(add_generation_prompt), 0, 0,
     P(has_add_generation)},
    {"add_special_tokens", C | R | T, sv_read_add_special, 0, 0, 0, 0},
    {"continue_final_message", C, sv_read_bool, P(continue_final), 0, 0, 0},
    {"prompt", T | L, sv_read_prompt, 0, 0, 0, 0},
    {"input_prefix", I, sv_read_text, P(input_prefix), 0, 0, 0},
    {"input_suffix", I, sv_read_text, P(input_suffix), 0, 0, 0},
    {"input_extra", I, sv_read_array, P(input_extra), 0, 0, 0},
    {"text", G, sv_read_prompt, 0, 0, 0, 0},
    {"input_ids", G, sv_read_prompt, 0, 0, 0, 0},
    {"sampling_params", G, read_sampling_params, 0, 0, 0, 0},
    {"suffix", T, sv_read_text, P(suffix), 0, 0, 0},
    {"truncate_prompt_tokens", C | T, sv_read_i32, P(truncate), -1, BIG, P(truncates)},
    {"truncation_side", C | T, sv_read_truncation_side, 0, 0, 0, 0},
    /* Anthropic's; messages_read.c reads the others */
    {"stop_sequences", M, sv_read_stop, 0, 0, 0, 0},
    /* recognised, and refused unless they have no effect */
    {"best_of", C | T, sv_read_i32, P(best_of), 1, 4096, 0},
    {"skip_special_tokens", C | R | T | S, sv_read_bool, P(skip_special), 0, 0, 0},
    {"functions", C, sv_read_functions, 0, 0, 0, 0},
    {"function_call", C, sv_read_functions, 0, 0, 0, 0},
    {"cache_salt", C | M | R | T | G, sv_read_cache_salt, 0, 0, 0, 0},
    {"modalities", C, sv_read_modalities, 0, 0, 0, 0},
};

/* Fields of some dialects; names are separated by a blank. */
struct names {
    int where;
    const char *list;
};
/* Taken from the body by a dialect's read_body (messages_read.c). */
static const struct names read_from_body[] = {
    {M, "system messages tools tool_choice thinking output_config output_format thread"},
};
/* Without effect: routing, caches and samplers of other servers, and what this server always or
 * never does. */
static const struct names ignored_fields[] = {
    {G, "stream_output log_metrics routing_key conversation_id no_logs "
        "background modalities"},
    {M, "cache_control context_management diagnostics inference_geo speed betas "
        "user_profile_id workspace_id"},
    {R, "client_metadata"},
    {C | T, "user guided_decoding_backend return_token_offsets return_mm_kwargs "
            "routed_experts_prompt_start"},
    {C, "store safety_identifier prompt_cache_key prediction verbosity "
        "reasoning_control"},
    {C | M, "metadata service_tier"},
    {C | R, "prompt_cache_retention"},
    {C | R | T | G, "priority session_id"},
    {C | T | G, "data_parallel_rank routed_experts_start_len routed_dp_rank "
                "disagg_prefill_dp_rank bootstrap_host bootstrap_port bootstrap_room"},
    {C | R | T | S, "stream_interval spaces_between_special_tokens"},
    {T | G, "custom_labels"},
    {C | G, "max_dynamic_patch min_dynamic_patch"},
    {C | R | T | L, "timings_per_token return_progress cache_prompt"},
    {C | T | L, "n_keep min_keep dynatemp_exponent xtc_threshold dry_base "
                "dry_allowed_length dry_penalty_last_n dry_sequence_breakers "
                "mirostat_tau mirostat_eta adaptive_decay backend_sampling id_slot "
                "n_cache_reuse n_discard sse_ping_interval"},
    {L, "penalize_nl slot_id api_key t_max_prompt_ms verbose"},
};
/* Not supported, and refused unless the value asks for nothing (null, false, 0, empty). */
static const struct names unsupported_fields[] = {
    {C | R | T, "guided_whitespace_pattern use_beam_search logits_processors "
                "kv_transfer_params vllm_xargs"},
    {C, "echo audio chat_template web_search_options task input_ids "
        "return_meta_info"},
    {G, "image_data video_data audio_data input_embeds return_indexer_topk "
        "return_sampling_mask return_flat_raw_top_logprobs "
        "return_flat_raw_top_logprobs_b64 return_entropy require_reasoning "
        "max_thinking_tokens lora_id mm_hashes video_config"},
    {M, "container mcp_servers compaction fallbacks"},
    {R, "conversation prompt context_management"},
    {C | R | T | S, "structural_tag"},
    {C | R, "media_io_kwargs mm_processor_kwargs"},
    {C | T | G, "session_params custom_logit_processor extra_key return_hidden_states "
                "images_config ngram_corpus_id return_routed_experts"},
    {C | T | S, "custom_params"},
    {C | T | L, "post_sampling_probs lora mirostat dry_multiplier xtc_probability "
                "dynatemp_range"},
    {C | T, "return_tokens n_probs watermarking repetition_detection "
            "ec_transfer_params return_cached_tokens_details"},
    {C | R | T | G, "lora_path"},
    {L, "image_data system_prompt"},
    {T, "prompt_embeds"},
    {C | G, "use_audio_in_video"},
};
/* The same; what asks for nothing is the number 1 here. typ_p: typical_p as llama-server's web page
 * calls it. */
static const struct names neutral_at_1[] = {
    {C | R | T, "length_penalty"},
    {C | R | T | L, "typical_p"},
    {C | T, "typ_p"},
    {L, "tfs_z"},
};
/* The number -1. */
static const struct names neutral_at_minus_1[] = {
    {R, "truncate_prompt_tokens"},
    {C | R | T, "thinking_token_budget"},
    {C | T | L, "adaptive_target top_n_sigma"},
    {C | T, "t_max_predict_ms"},
};

static bool is_listed(const struct names *lists, size_t n_lists, const char *name, int where)
{
    const size_t n_name = strlen(name);

    for (size_t i = 0; i < n_lists; i++) {
        size_t n = 0;
        for (const char *at = lists[i].list; (lists[i].where & where) && *at;
             at += n + (at[n] != 0)) {
            n = strcspn(at, " ");
            if (n == n_name && memcmp(at, name, n) == 0)
                return true;
        }
    }
    return false;
}

#define LISTED(lists, name, where) is_listed(lists, sizeof(lists) / sizeof *(lists), name, where)

/* The number that asks for nothing in an unsupported field; NAN: it is not listed. */
static double neutral_number(const char *name, int where)
{
    return LISTED(unsupported_fields, name, where)   ? 0
           : LISTED(neutral_at_1, name, where)       ? 1
           : LISTED(neutral_at_minus_1, name, where) ? -1
                                                     : (double)NAN;
}

static int check_unsupported(const char *name, double neutral, const json_t *v,
                             struct sv_api_err *e)
{
    const bool fine = json_is_boolean(v)  ? json_is_true(v) == (neutral != 0)
                      : json_is_number(v) ? json_number_value(v) == neutral
                      : json_is_string(v) ? json_string_length(v) == 0
                                          : json_array_size(v) == 0 && json_object_size(v) == 0;
    if (fine)
        return 0;
    sv_api_bad(e, name, "'%s' is not supported with this value", name);
    e->code = "unsupported_parameter";
    return -1;
}

static const struct sv_field *find(const char *name, int where)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if ((fields[i].where & where) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

int sv_unknown_field(struct sv_buf *ignored, const char *prefix, const char *name,
                     struct sv_api_err *e)
{
    char full[96], line[128];

    if (!ignored)
        return sv_api_unknown(e, prefix, name);
    snprintf(full, sizeof full, "%.30s%.64s", prefix, name);
    sv_log_plain(line, full);
    if (ignored->len < MAX_IGNORED_BYTES && !sv_has_line(ignored, line))
        sv_buf_printf(ignored, "%s\n", line);
    return 0;
}

/* own: rows of a dialect, which come first. prefix: the object's name and a dot, or "". */
static int read_fields(struct sv_params *p, int where, const struct sv_field *own,
                       const char *prefix, json_t *object, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) {
        if (json_is_null(value))
            continue;
        const struct sv_field *f = own;
        while (f && f->name && strcmp(f->name, key) != 0)
            f++;
        f = f && f->name ? f : find(key, where);
        if (!f && (LISTED(read_from_body, key, where) || LISTED(ignored_fields, key, where)))
            continue;
        const double neutral = f ? (double)NAN : neutral_number(key, where);
        if (!isnan(neutral)) {
            if (check_unsupported(key, neutral, value, e))
                return -1;
            continue;
        }
        if (f ? f->read(p, f, value, e) : sv_unknown_field(p->ignored, prefix, key, e))
            return -1;
    }
    return 0;
}

/* One object for all prompts, or a list with one for each (sv_params_each). */
static int read_sampling_params(struct sv_params *p, const struct sv_field *f, json_t *v,
                                struct sv_api_err *e)
{
    if (json_is_array(v)) {
        p->sampling_list = v;
        return 0;
    }
    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object, or an array of objects", v);
    return read_fields(p, S, NULL, "sampling_params.", v, e);
}

/* n and the constraint must be the same for all prompts, though each prompt's object has them. */
static int check_alike(const struct sv_params *first, const struct sv_params *p, size_t i,
                       struct sv_api_err *e)
{
    if (p->n != first->n)
        return sv_api_bad(e, "sampling_params", "'sampling_params[%zu].n' is %d, and the first %d",
                          i, p->n, first->n);
    if (p->constraint.kind == first->constraint.kind &&
        (p->constraint.value == first->constraint.value ||
         json_equal(p->constraint.value, first->constraint.value)))
        return 0;
    return sv_api_unsupported(
        e, "sampling_params",
        "'sampling_params[%zu]': the prompts of a request have one form, and this is another", i);
}

int sv_params_each(struct sv_params *p, int32_t n_prompts, const struct sv_serve_model *m,
                   const struct sv_serve_options *o, struct sv_params **each, struct sv_api_err *e)
{
    size_t n = json_array_size(p->sampling_list);

    *each = NULL;
    if (!p->sampling_list)
        return 0;
    if (n != (size_t)n_prompts)
        return sv_api_bad(e, "sampling_params", "'sampling_params' has %zu entries for %d prompts",
                          n, n_prompts);
    if (n > (size_t)o->max_choices)
        return sv_api_bad(e, "sampling_params", "'sampling_params' has %zu entries, at most %d", n,
                          o->max_choices);
    *each = sv_calloc(n, sizeof **each);
    if (!*each)
        return sv_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        struct sv_params *one = &(*each)[i];
        json_t *v = json_array_get(p->sampling_list, i);
        *one = *p;
        if (!json_is_object(v))
            return sv_wrong_type(e, "sampling_params", "an array of objects", v);
        if (read_fields(one, S, NULL, "sampling_params.", v, e) || check_alike(*each, one, i, e) ||
            sv_params_complete(one, SV_GENERATE, m, o, e))
            return -1;
    }
    p->n = (*each)->n;
    p->constraint = (*each)->constraint;
    return 0;
}

/* ---------------------------------------------------------------- a body */

bool sv_params_own(struct sv_params *p, json_t *v)
{
    if (!p->made)
        p->made = json_array();
    return !json_array_append_new(p->made, v);
}

void sv_params_fini(struct sv_params *p)
{
    json_decref(p->made);
    p->made = NULL;
}

/* llama-server's penalty applies to the last repeat_last_n tokens: -1 all, 0 none. */
static int take_repeat_penalty(struct sv_params *p, struct sv_api_err *e)
{
    if (p->repeat_penalty == 0 || p->repeat_penalty == 1 || p->repeat_last_n == 0)
        return 0;
    if (p->r.repetition_penalty != 0 && p->r.repetition_penalty != 1)
        return sv_api_bad(e, "repeat_penalty",
                          "'repeat_penalty' and 'repetition_penalty' exclude each other");
    p->r.repetition_penalty = p->repeat_penalty;
    p->r.repetition_last_n = p->repeat_last_n < 0 ? 0 : p->repeat_last_n;
    return 0;
}

static int check_together(struct sv_params *p, enum sv_dialect_kind kind, struct sv_api_err *e)
{
    if (kind == SV_CHAT && !p->messages)
        return sv_api_bad(e, "messages", "'messages' is missing");
    if (kind == SV_CHAT && !json_array_size(p->messages))
        return sv_api_bad(e, "messages", "'messages' is empty");
    if (json_object_get(p->template_args, "messages"))
        return sv_api_bad(e, "chat_template_kwargs",
                          "'chat_template_kwargs.messages': the conversation is in 'messages'");
    if ((kind == SV_COMPLETIONS || kind == SV_LLAMA) && !p->prompt)
        return sv_api_bad(e, "prompt", "'prompt' is missing");
    if (kind == SV_INFILL && !p->input_prefix)
        return sv_api_bad(e, "input_prefix", "'input_prefix' is missing");
    if (kind == SV_INFILL && !p->input_suffix)
        return sv_api_bad(e, "input_suffix", "'input_suffix' is missing");
    if (kind == SV_INFILL && p->prompt && !json_is_string(p->prompt))
        return sv_api_bad(e, "prompt",
                          "'prompt' must be a string: the text between the prefix and the cursor");
    if (p->truncates && !p->truncate)
        return sv_api_bad(e, "truncate_prompt_tokens",
                          "'truncate_prompt_tokens' must be at least 1, or -1 for as many as fit");
    if (kind == SV_GENERATE && !p->prompt)
        return sv_api_bad(e, "text", "'text' or 'input_ids' is missing");
    if (p->continue_final && p->has_add_generation && p->add_generation_prompt)
        return sv_api_bad(
            e, "continue_final_message",
            "'continue_final_message' and 'add_generation_prompt' exclude each other");
    if (kind == SV_CHAT && p->n_top && !p->logprobs)
        return sv_api_bad(e, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (json_array_size(p->logprob_ids) && !p->logprobs &&
        kind != SV_GENERATE) /* SGLang passes it over */
        return sv_api_bad(e, p->logprob_ids_name, "'%s' needs 'logprobs'", p->logprob_ids_name);
    if (sv_is_chat(kind) && p->has_max_tokens && !p->r.max_tokens)
        return sv_api_bad(e, "max_tokens", "'max_tokens' must be at least 1");
    if (sv_is_chat(kind) && sv_tools_check(p, e))
        return -1;
    if (p->best_of && p->best_of < p->n)
        return sv_api_bad(e, "best_of", "'best_of' must be at least 'n'");
    if (p->best_of > p->n)
        return sv_api_unsupported(e, "best_of", "'best_of': only as many as 'n' are supported");
    if (p->stream && p->n_prompt_top >= 0)
        return sv_api_bad(e, "prompt_logprobs", "'prompt_logprobs' cannot be streamed");
    return 0;
}

int sv_params_read(struct sv_params *p, const struct sv_dialect *d, json_t *body,
                   struct sv_buf *ignored, struct sv_api_err *e)
{
    const enum sv_dialect_kind kind = d->kind;

    memset(p, 0, sizeof *p);
    p->ignored = ignored;
    p->n = 1;
    p->n_prompt_top = -1;
    p->logprob_start = -1;
    p->repeat_penalty = 1;
    p->repeat_last_n = 64; /* llama-server's */
    p->spec = -1;
    p->add_special = -1;
    p->add_generation_prompt = true;
    p->parallel = p->separate_reasoning = p->include_reasoning = p->stream_reasoning = true;
    p->skip_special = p->store = true;
    if (read_fields(p, 1 << kind, d->fields, "", body, e) ||
        (d->read_body && d->read_body(p, body, e)))
        return -1;
    const struct sv_field *newer = find("max_completion_tokens", 1 << kind);
    json_t *most = newer ? json_object_get(body, newer->name) : NULL;
    if (most && !json_is_null(most))
        newer->read(p, newer, most,
                    e); /* it takes precedence over max_tokens, whichever comes first */
    return take_repeat_penalty(p, e) || check_together(p, kind, e) ? -1 : 0;
}

static int check_ids(const int32_t *ids, int32_t n, const char *name, int32_t vocab,
                     struct sv_api_err *e)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return sv_api_bad(e, name, "'%s': token %d is outside [0, %d)", name, ids[i], vocab);
    return 0;
}

static int parse_defaults(void *user, const json_t *root, struct sv_err *err)
{
    struct sv_serve_defaults *d = user;
    int rc = sv_json_num_opt(root, "temperature", SV_RANGE_TEMPERATURE, &d->temperature, err);

    if (!rc)
        rc = sv_json_num_opt(root, "top_p", SV_RANGE_TOP_P, &d->top_p, err);
    if (!rc && d->top_p == 0)
        rc = sv_fail(err, SV_EINVAL, -1, "field 'top_p': 0 would leave no token; 1 is off");
    if (!rc)
        rc = sv_json_num_opt(root, "min_p", SV_RANGE_MIN_P, &d->min_p, err);
    if (!rc)
        rc = sv_json_int_opt(root, "top_k", SV_RANGE_TOP_K, &d->top_k, err);
    if (!rc)
        rc = sv_json_num_opt(root, "repetition_penalty", SV_RANGE_REPETITION,
                             &d->repetition_penalty, err);
    return rc;
}

int sv_serve_defaults(struct sv_serve_defaults *d, const struct sv_serve_options *o,
                      struct sv_err *err)
{
    *d = (struct sv_serve_defaults){.temperature = 1, .top_p = 1};
    return o->no_generation_config
               ? SV_OK
               : sv_gen_config_read(o->engine.target_dir, parse_defaults, d, err);
}

static void default_sampling(struct sv_params *p, const struct sv_serve_defaults *d)
{
    if (!p->has_temperature)
        p->r.temperature = d->temperature;
    if (!p->has_top_p)
        p->r.top_p = d->top_p;
    if (!p->has_top_k)
        p->r.top_k = d->top_k;
    if (!p->has_min_p)
        p->r.min_p = d->min_p;
    if (!p->has_repetition)
        p->r.repetition_penalty = d->repetition_penalty;
}

/* llama-server's list of samplers: those that are not listed are off. */
static void apply_samplers(struct sv_params *p)
{
    if (!p->samplers)
        return;
    if (!(p->samplers & SV_SAMPLER_TEMPERATURE))
        p->r.temperature = 1;
    if (!(p->samplers & SV_SAMPLER_TOP_K))
        p->r.top_k = 0;
    if (!(p->samplers & SV_SAMPLER_TOP_P))
        p->r.top_p = 1;
    if (!(p->samplers & SV_SAMPLER_MIN_P))
        p->r.min_p = 0;
    if (!(p->samplers & SV_SAMPLER_PENALTIES))
        p->r.presence_penalty = p->r.frequency_penalty = p->r.repetition_penalty = 0;
}

/* The name of the field for the longest answer. */
static const char *length_name(enum sv_dialect_kind kind)
{
    return kind == SV_GENERATE    ? "max_new_tokens"
           : kind == SV_RESPONSES ? "max_output_tokens"
                                  : "max_tokens";
}

static void default_lengths(struct sv_params *p, enum sv_dialect_kind kind)
{
    if (p->has_max_tokens) {
        p->discard = !p->r.max_tokens; /* only the prompt's log probabilities are wanted */
        if (p->discard)
            p->r.max_tokens = 1;
    } else if (kind == SV_COMPLETIONS) {
        p->r.max_tokens = 16; /* OpenAI's default */
    } else if (kind == SV_GENERATE) {
        p->r.max_tokens = 128; /* SGLang's */
    }
}

int sv_params_complete(struct sv_params *p, enum sv_dialect_kind kind,
                       const struct sv_serve_model *m, const struct sv_serve_options *o,
                       struct sv_api_err *e)
{
    int32_t limit = o->max_tokens ? o->max_tokens : m->info.context;

    default_sampling(p, &m->defaults);
    apply_samplers(p);
    default_lengths(p, kind);
    if (p->r.max_tokens == INT32_MAX && o->max_tokens)
        p->r.max_tokens = o->max_tokens;
    if (p->r.max_tokens > limit && o->max_tokens)
        return sv_api_bad(e, length_name(kind),
                          "an answer of %d tokens is longer than the server allows (%d)",
                          p->r.max_tokens, limit);
    if (!p->r.max_tokens && o->max_tokens)
        p->r.max_tokens = o->max_tokens;
    if (p->r.max_tokens && p->r.min_tokens > p->r.max_tokens)
        return sv_api_bad(e, kind == SV_GENERATE ? "min_new_tokens" : "min_tokens",
                          "an answer of at least %d tokens cannot have at most %d", p->r.min_tokens,
                          p->r.max_tokens);
    if (p->r.width > m->info.width)
        return sv_api_bad(e, "width", "'width' must be at most %d here, not %d", m->info.width,
                          p->r.width);
    if (check_ids(p->stop_ids, p->r.n_stop_ids, "stop_token_ids", m->info.vocab_size, e) ||
        check_ids(p->bias_ids, p->r.n_bias, "logit_bias", m->info.vocab_size, e))
        return -1;
    if (kind >= SV_LLAMA)
        p->logprobs = p->n_top > 0;
    if (!p->logprobs)
        p->n_top = 0;
    p->r.show_special = !p->skip_special;
    p->r.stop = p->stop;
    p->r.stop_ids = p->stop_ids;
    p->r.bias_ids = p->bias_ids;
    p->r.bias = p->bias;
    p->r.logprobs = p->logprobs;
    p->r.prompt_logprobs =
        p->n_prompt_top >= 0 || ((p->echo || p->logprob_start >= 0) && p->logprobs);
    p->r.n_top_logprobs = p->n_prompt_top > p->n_top ? p->n_prompt_top : p->n_top;
    if (p->spec < 0)
        p->spec = o->spec_metrics;
    if (o->force_usage)
        p->include_usage = true;
    return 0;
}
