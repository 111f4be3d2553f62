/*
 * params.c - the fields of request bodies: one table for all dialects, unknown names refused.
 *
 * Called by call.c, tokenize.c and the fuzz target. A null counts as absent, as in OpenAI's schema.
 * What the model decides (ids below the vocabulary, room in the context) is checked in
 * sv_params_complete. Must not: know HTTP.
 */
#include "serve/params.h"

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

static int read_sampling_params(struct sv_params *p, const struct sv_field *f, json_t *v,
                                struct sv_api_err *e);

/* ---------------------------------------------------------------- the tables */

#define P(x) offsetof(struct sv_params, x)
#define BIG 2147483647.0

static const struct sv_field fields[] = {
    /* how to choose tokens */
    {"temperature", C | M | R | T | L | S, sv_read_num, P(r.temperature), 0, 100,
     P(has_temperature)},
    {"top_p", C | M | R | T | L | S, sv_read_top_p, P(r.top_p), 0, 1, P(has_top_p)},
    {"top_k", C | M | R | T | L | S, sv_read_top_k, 0, -1, BIG, P(has_top_k)},
    {"min_p", C | M | R | T | L | S, sv_read_num, P(r.min_p), 0, 1, P(has_min_p)},
    {"typical_p", C | R | T | L, sv_read_neutral, 0, 1, 0, 0},
    {"seed", C | M | R | T | S, sv_read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"seed", L, sv_read_seed, 1, -9.3e18, 9.3e18, P(has_seed)},
    {"sampling_seed", C | R | T | S, sv_read_seed, 0, -9.3e18, 9.3e18, P(has_seed)},
    {"presence_penalty", C | M | R | T | L | S, sv_read_num, P(r.presence_penalty), -2, 2, 0},
    {"frequency_penalty", C | M | R | T | L | S, sv_read_num, P(r.frequency_penalty), -2, 2, 0},
    {"repetition_penalty", C | M | R | T | L | S, sv_read_num, P(r.repetition_penalty), 1e-3, 2, 0},
    {"repeat_penalty", C | R | T | L, sv_read_num, P(repeat_penalty), 1e-3, 2, 0},
    {"repeat_last_n", C | R | T | L, sv_read_i32, P(repeat_last_n), -1, BIG, 0},
    {"logit_bias", C | M | R | T | L | S, sv_read_bias, 0, 0, 0, 0},
    {"bad_words", C | M | R | T, sv_read_array, P(bad_words), 0, 0, 0},
    {"allowed_token_ids", C | M | R | T, sv_read_array, P(allowed_ids), 0, 0, 0},
    {"width", C | M | R | T | L | S, sv_read_i32, P(r.width), 0, 64, 0},
    /* how much, and when to end */
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
    /* what it must be */
    {"response_format", C | T, sv_read_response_format, 0, 0, 0, 0},
    {"structured_outputs", C | R | T, sv_read_structured_outputs, 0, 0, 0, 0},
    {"guided_json", C | R | T, sv_read_form, SV_FORM_SCHEMA, 0, 0, 0},
    {"guided_regex", C | R | T, sv_read_form, SV_FORM_REGEX, 0, 0, 0},
    {"guided_choice", C | R | T, sv_read_form, SV_FORM_CHOICE, 0, 0, 0},
    {"guided_grammar", C | R | T, sv_read_form, SV_FORM_GBNF, 0, 0, 0},
    {"guided_whitespace_pattern", C | R | T, sv_read_neutral, 0, 0, 0, 0},
    {"json_schema", C | R | T | L | S, sv_read_form, SV_FORM_SCHEMA, 0, 0, 0},
    {"regex", C | R | T | S, sv_read_form, SV_FORM_REGEX, 0, 0, 0},
    {"ebnf", C | R | T | S, sv_read_form, SV_FORM_GBNF, 0, 0, 0},
    {"grammar", C | R | T | L, sv_read_form, SV_FORM_GBNF, 0, 0, 0},
    /* what comes back */
    {"model", C | M | R | T | G | L, sv_read_str, P(model), 0, 0, 0},
    {"stream", C | M | R | T | G | L, sv_read_bool, P(stream), 0, 0, 0},
    {"stream_options", C | R | T, sv_read_stream_options, 0, 0, 0, 0},
    {"logprobs", C, sv_read_bool, P(logprobs), 0, 0, 0},
    {"top_logprobs", C | R, sv_read_i32, P(n_top), 0, 20, 0},
    {"logprobs", T, sv_read_logprobs_count, 0, 0, 20, 0},
    {"prompt_logprobs", C | T, sv_read_i32, P(n_prompt_top), 0, 20, 0},
    {"echo", T, sv_read_bool, P(echo), 0, 0, 0},
    {"echo", C, sv_read_neutral, 0, 0, 0, 0},
    {"n_probs", L, sv_read_i32, P(n_top), 0, 20, 0},
    {"return_logprob", G, sv_read_each_bool, P(logprobs), 0, 0, 0},
    {"top_logprobs_num", G, sv_read_each_i32, P(n_top), 0, 20, 0},
    {"logprob_start_len", G, sv_read_each_i32, P(logprob_start), -1, BIG, 0},
    {"token_ids_logprob", G, sv_read_asked, 0, 0, 0, 0},
    {"logprob_token_ids", C | T, sv_read_asked, 0, 0, 0, 0},
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
    {"separate_reasoning", C | R, sv_read_bool, P(separate_thoughts), 0, 0, 0},
    {"include_reasoning", C | R, sv_read_bool, P(include_thoughts), 0, 0, 0},
    {"stream_reasoning", C | R, sv_read_bool, P(stream_thoughts), 0, 0, 0},
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
    {"image_data", G, sv_read_neutral, 0, 0, 0, 0},
    {"stream_output", G, sv_read_nothing, 0, 0, 0, 0},
    /* Anthropic's: those that messages_read.c reads, ... */
    {"system", M, sv_read_nothing, 0, 0, 0, 0},
    {"messages", M, sv_read_nothing, 0, 0, 0, 0},
    {"tools", M, sv_read_nothing, 0, 0, 0, 0},
    {"tool_choice", M, sv_read_nothing, 0, 0, 0, 0},
    {"thinking", M, sv_read_nothing, 0, 0, 0, 0},
    {"output_config", M, sv_read_nothing, 0, 0, 0, 0},
    {"output_format", M, sv_read_nothing, 0, 0, 0, 0},
    {"thread", M, sv_read_nothing, 0, 0, 0, 0},
    {"stop_sequences", M, sv_read_stop, 0, 0, 0, 0},
    {"container", M, sv_read_neutral, 0, 0, 0, 0},
    {"mcp_servers", M, sv_read_neutral, 0, 0, 0, 0},
    {"compaction", M, sv_read_neutral, 0, 0, 0, 0},
    {"fallbacks", M, sv_read_neutral, 0, 0, 0, 0},
    {"cache_control", M, sv_read_nothing, 0, 0, 0, 0}, /* ... and prefixes are kept in any case */
    {"context_management", M, sv_read_nothing, 0, 0, 0, 0},
    {"diagnostics", M, sv_read_nothing, 0, 0, 0, 0},
    {"inference_geo", M, sv_read_nothing, 0, 0, 0, 0},
    {"speed", M, sv_read_nothing, 0, 0, 0, 0},
    {"betas", M, sv_read_nothing, 0, 0, 0, 0},
    {"user_profile_id", M, sv_read_nothing, 0, 0, 0, 0},
    {"workspace_id", M, sv_read_nothing, 0, 0, 0, 0},
    /* the Responses API's own */
    {"input", R, sv_read_input, 0, 0, 0, 0},
    {"instructions", R, sv_read_str, P(instructions), 0, 0, 0},
    {"previous_response_id", R, sv_read_str, P(previous_id), 0, 0, 0},
    {"store", R, sv_read_bool, P(store), 0, 0, 0},
    {"max_output_tokens", R, sv_read_length, 1, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"text", R, sv_read_text_settings, 0, 0, 0, 0},
    {"reasoning", R, sv_read_reasoning, 0, 0, 0, 0},
    {"tools", R, sv_read_flat_tools, 0, 0, 0, 0},
    {"tool_choice", R, sv_read_tool_choice, 1, 0, 0, 0},
    {"include", R, sv_read_include, 0, 0, 0, 0},
    {"metadata", R, sv_read_metadata, 0, 0, 0, 0},
    {"truncation", R, sv_read_truncation, 0, 0, 0, 0},
    {"background", R, sv_read_background, 0, 0, 0, 0},
    {"conversation", R, sv_read_neutral, 0, 0, 0, 0},
    {"prompt", R, sv_read_neutral, 0, 0, 0, 0}, /* a template that OpenAI keeps */
    {"context_management", R, sv_read_neutral, 0, 0, 0, 0},
    {"max_tool_calls", R, sv_read_max_tool_calls, 0, 0, 0, 0},
    {"user", R, sv_read_echoed, 0, 0, 0, 0},
    {"service_tier", R, sv_read_echoed, 0, 0, 0, 0},
    {"safety_identifier", R, sv_read_echoed, 0, 0, 0, 0},
    {"prompt_cache_key", R, sv_read_echoed, 0, 0, 0, 0},
    {"client_metadata", R, sv_read_nothing, 0, 0, 0, 0},
    /* known and refused unless they ask for nothing */
    {"best_of", C | T, sv_read_i32, P(best_of), 1, 4096, 0},
    {"use_beam_search", C | R | T, sv_read_neutral, 0, 0, 0, 0},
    {"length_penalty", C | R | T, sv_read_neutral, 0, 1, 0, 0},
    {"skip_special_tokens", C | R | T | S, sv_read_bool, P(skip_special), 0, 0, 0},
    {"truncate_prompt_tokens", R, sv_read_neutral, 0, -1, 0, 0},
    {"structural_tag", C | R | T | S, sv_read_neutral, 0, 0, 0, 0},
    {"thinking_token_budget", C | R | T, sv_read_neutral, 0, -1, 0, 0},
    {"media_io_kwargs", C | R, sv_read_neutral, 0, 0, 0, 0},
    {"session_params", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"custom_logit_processor", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"custom_params", C | T | S, sv_read_neutral, 0, 0, 0, 0},
    {"extra_key", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"video_data", G, sv_read_neutral, 0, 0, 0, 0},
    {"audio_data", G, sv_read_neutral, 0, 0, 0, 0},
    {"input_embeds", G, sv_read_neutral, 0, 0, 0, 0},
    {"typ_p", C | T, sv_read_neutral, 0, 1, 0, 0}, /* as llama-server's page calls typical_p */
    {"adaptive_target", C | T | L, sv_read_neutral, 0, -1, 0, 0},
    {"top_n_sigma", C | T | L, sv_read_neutral, 0, -1, 0, 0},
    {"t_max_predict_ms", C | T, sv_read_neutral, 0, -1, 0, 0},
    {"post_sampling_probs", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"return_tokens", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"lora", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"functions", C, sv_read_functions, 0, 0, 0, 0},
    {"function_call", C, sv_read_functions, 0, 0, 0, 0},
    {"audio", C, sv_read_neutral, 0, 0, 0, 0},
    {"chat_template", C, sv_read_neutral, 0, 0, 0, 0},
    {"logits_processors", C | R | T, sv_read_neutral, 0, 0, 0, 0},
    {"mm_processor_kwargs", C | R, sv_read_neutral, 0, 0, 0, 0},
    {"cache_salt", C | M | R | T | G, sv_read_cache_salt, 0, 0, 0, 0},
    {"kv_transfer_params", C | R | T, sv_read_neutral, 0, 0, 0, 0},
    {"vllm_xargs", C | R | T, sv_read_neutral, 0, 0, 0, 0},
    {"lora_path", C | R | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"return_hidden_states", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"tfs_z", L, sv_read_neutral, 0, 1, 0, 0},
    {"image_data", L, sv_read_neutral, 0, 0, 0, 0},
    {"system_prompt", L, sv_read_neutral, 0, 0, 0, 0},
    {"mirostat", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"dry_multiplier", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"xtc_probability", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"dynatemp_range", C | T | L, sv_read_neutral, 0, 0, 0, 0},
    {"n_probs", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"web_search_options", C, sv_read_neutral, 0, 0, 0, 0},
    {"watermarking", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"repetition_detection", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"ec_transfer_params", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"prompt_embeds", T, sv_read_neutral, 0, 0, 0, 0},
    {"images_config", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"ngram_corpus_id", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"use_audio_in_video", C | G, sv_read_neutral, 0, 0, 0, 0},
    {"task", C, sv_read_neutral, 0, 0, 0, 0},
    {"input_ids", C, sv_read_neutral, 0, 0, 0, 0},
    {"return_meta_info", C, sv_read_neutral, 0, 0, 0, 0},
    {"return_cached_tokens_details", C | T, sv_read_neutral, 0, 0, 0, 0},
    {"return_routed_experts", C | T | G, sv_read_neutral, 0, 0, 0, 0},
    {"return_indexer_topk", G, sv_read_neutral, 0, 0, 0, 0},
    {"return_sampling_mask", G, sv_read_neutral, 0, 0, 0, 0},
    {"return_flat_raw_top_logprobs", G, sv_read_neutral, 0, 0, 0, 0},
    {"return_flat_raw_top_logprobs_b64", G, sv_read_neutral, 0, 0, 0, 0},
    {"return_entropy", G, sv_read_neutral, 0, 0, 0, 0},
    {"require_reasoning", G, sv_read_neutral, 0, 0, 0, 0},
    {"max_thinking_tokens", G, sv_read_neutral, 0, 0, 0, 0},
    {"lora_id", G, sv_read_neutral, 0, 0, 0, 0},
    {"mm_hashes", G, sv_read_neutral, 0, 0, 0, 0},
    {"video_config", G, sv_read_neutral, 0, 0, 0, 0},
    {"modalities", C, sv_read_modalities, 0, 0, 0, 0},
    /* of no effect */
    {"user", C | T, sv_read_nothing, 0, 0, 0, 0},
    {"store", C, sv_read_nothing, 0, 0, 0, 0},
    {"metadata", C | M, sv_read_nothing, 0, 0, 0, 0},
    {"service_tier", C | M, sv_read_nothing, 0, 0, 0, 0},
    {"safety_identifier", C, sv_read_nothing, 0, 0, 0, 0},
    {"prompt_cache_key", C, sv_read_nothing, 0, 0, 0, 0},
    {"prompt_cache_retention", C | R, sv_read_nothing, 0, 0, 0, 0},
    {"prediction", C, sv_read_nothing, 0, 0, 0, 0},
    {"verbosity", C, sv_read_nothing, 0, 0, 0, 0},
    {"priority", C | R | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"guided_decoding_backend", C | T, sv_read_nothing, 0, 0, 0, 0},
    {"data_parallel_rank", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"log_metrics", G, sv_read_nothing, 0, 0, 0, 0},
    {"stream_interval", C | R | T | S, sv_read_nothing, 0, 0, 0, 0},
    {"session_id", C | R | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"return_token_offsets", C | T, sv_read_nothing, 0, 0, 0,
     0}, /* vLLM ignores these two here as well */
    {"return_mm_kwargs", C | T, sv_read_nothing, 0, 0, 0, 0},
    {"routed_experts_prompt_start", C | T, sv_read_nothing, 0, 0, 0, 0},
    {"routed_experts_start_len", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"routed_dp_rank", C | T | G, sv_read_nothing, 0, 0, 0,
     0}, /* for routers in front of several servers */
    {"disagg_prefill_dp_rank", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"bootstrap_host", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"bootstrap_port", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"bootstrap_room", C | T | G, sv_read_nothing, 0, 0, 0, 0},
    {"routing_key", G, sv_read_nothing, 0, 0, 0, 0},
    {"conversation_id", G, sv_read_nothing, 0, 0, 0, 0},
    {"custom_labels", T | G, sv_read_nothing, 0, 0, 0, 0},
    {"no_logs", G, sv_read_nothing, 0, 0, 0, 0}, /* prompts and answers never are */
    {"background", G, sv_read_nothing, 0, 0, 0, 0},
    {"modalities", G, sv_read_nothing, 0, 0, 0, 0}, /* of the images, which are refused */
    {"max_dynamic_patch", C | G, sv_read_nothing, 0, 0, 0, 0},
    {"min_dynamic_patch", C | G, sv_read_nothing, 0, 0, 0, 0},
    {"timings_per_token", C | R | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"return_progress", C | R | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"n_keep", C | T | L, sv_read_nothing, 0, 0, 0,
     0}, /* nothing is ever dropped from the context */
    {"min_keep", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"dynatemp_exponent", C | T | L, sv_read_nothing, 0, 0, 0,
     0}, /* these belong to samplers that are off */
    {"xtc_threshold", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"dry_base", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"dry_allowed_length", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"dry_penalty_last_n", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"dry_sequence_breakers", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"spaces_between_special_tokens", C | R | T | S, sv_read_nothing, 0, 0, 0, 0},
    {"cache_prompt", C | R | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"penalize_nl", L, sv_read_nothing, 0, 0, 0, 0}, /* these three older versions had */
    {"slot_id", L, sv_read_nothing, 0, 0, 0, 0},
    {"api_key", L, sv_read_nothing, 0, 0, 0, 0},
    {"mirostat_tau", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"mirostat_eta", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"adaptive_decay", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"backend_sampling", C | T | L, sv_read_nothing, 0, 0, 0, 0}, /* where numbers are drawn */
    {"reasoning_control", C, sv_read_nothing, 0, 0, 0, 0},        /* that a thought may be ended */
    {"id_slot", C | T | L, sv_read_nothing, 0, 0, 0,
     0}, /* every sequence may go on from any kept prefix */
    {"n_cache_reuse", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"n_discard", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"t_max_prompt_ms", L, sv_read_nothing, 0, 0, 0, 0},
    {"sse_ping_interval", C | T | L, sv_read_nothing, 0, 0, 0, 0},
    {"verbose", L, sv_read_nothing, 0, 0, 0, 0},
};

static const struct sv_field *find(const char *name, int where)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if ((fields[i].where & where) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static void drop_unknown(json_t *object, int where, struct sv_buf *names)
{
    void *next;
    const char *key;
    json_t *value;

    json_object_foreach_safe(object, next, key, value)
    {
        if (find(key, where))
            continue;
        if (names->len < 256)
            sv_buf_printf(names, names->len ? ",%.64s" : "%.64s", key);
        json_object_del(object, key);
    }
}

void sv_params_drop_unknown(enum sv_dialect_kind kind, json_t *body, struct sv_buf *names)
{
    json_t *own = json_object_get(body, "sampling_params"), *each;
    size_t i;

    drop_unknown(body, 1 << kind, names);
    if (kind != SV_GENERATE)
        return;
    if (json_is_object(own))
        drop_unknown(own, S, names);
    json_array_foreach(own, i, each)
        drop_unknown(each, S, names);
}

/* prefix: what the object is called, with a dot behind it, or "". */
static int read_fields(struct sv_params *p, int where, const char *prefix, json_t *object,
                       struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) {
        if (json_is_null(value))
            continue;
        const struct sv_field *f = find(key, where);
        if (!f)
            return sv_api_unknown(e, prefix, key);
        if (f->read(p, f, value, e))
            return -1;
    }
    return 0;
}

/* One for all prompts, or a list with one for each (sv_params_each). */
static int read_sampling_params(struct sv_params *p, const struct sv_field *f, json_t *v,
                                struct sv_api_err *e)
{
    if (json_is_array(v)) {
        p->sampling_list = v;
        return 0;
    }
    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object, or an array of objects", v);
    return read_fields(p, S, "sampling_params.", v, e);
}

/* What all prompts have in common, though it stands in each one's settings. */
static int check_alike(const struct sv_params *first, const struct sv_params *p, size_t i,
                       struct sv_api_err *e)
{
    if (p->n != first->n)
        return sv_api_bad(e, "sampling_params", "'sampling_params[%zu].n' is %d, and the first %d",
                          i, p->n, first->n);
    if (p->form.kind == first->form.kind &&
        (p->form.value == first->form.value || json_equal(p->form.value, first->form.value)))
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
        if (read_fields(one, S, "sampling_params.", v, e) || check_alike(*each, one, i, e) ||
            sv_params_complete(one, SV_GENERATE, m, o, e))
            return -1;
    }
    p->n = (*each)->n;
    p->form = (*each)->form;
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

/* llama-server's penalty sees so many tokens: -1 all, 0 none. */
static int take_repeat_penalty(struct sv_params *p, struct sv_api_err *e)
{
    if (p->repeat_penalty == 1 || p->repeat_last_n == 0)
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
                          "'chat_template_kwargs.messages': the conversation stands in 'messages'");
    if ((kind == SV_COMPLETIONS || kind == SV_LLAMA) && !p->prompt)
        return sv_api_bad(e, "prompt", "'prompt' is missing");
    if (kind == SV_INFILL && !p->input_prefix)
        return sv_api_bad(e, "input_prefix", "'input_prefix' is missing");
    if (kind == SV_INFILL && !p->input_suffix)
        return sv_api_bad(e, "input_suffix", "'input_suffix' is missing");
    if (kind == SV_INFILL && p->prompt && !json_is_string(p->prompt))
        return sv_api_bad(
            e, "prompt",
            "'prompt' must be a string: what stands between the prefix and the cursor");
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
    if (json_array_size(p->asked) && !p->logprobs &&
        kind != SV_GENERATE) /* SGLang passes it over */
        return sv_api_bad(e, p->asked_name, "'%s' needs 'logprobs'", p->asked_name);
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

int sv_params_read(struct sv_params *p, enum sv_dialect_kind kind, json_t *body,
                   struct sv_api_err *e)
{
    memset(p, 0, sizeof *p);
    p->n = 1;
    p->n_prompt_top = -1;
    p->logprob_start = -1;
    p->repeat_penalty = 1;
    p->repeat_last_n = 64; /* llama-server's */
    p->spec = -1;
    p->add_special = -1;
    p->add_generation_prompt = true;
    p->r.top_p = 1;
    p->parallel = p->separate_thoughts = p->include_thoughts = p->stream_thoughts = true;
    p->skip_special = p->store = true;
    if (read_fields(p, 1 << kind, "", body, e) ||
        (kind == SV_MESSAGES && sv_messages_read(p, body, e)))
        return -1;
    const struct sv_field *newer = find("max_completion_tokens", 1 << kind);
    json_t *most = newer ? json_object_get(body, newer->name) : NULL;
    if (most && !json_is_null(most))
        newer->read(p, newer, most, e); /* it counts, wherever max_tokens stands */
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

/* llama-server's list of samplers: what is not named is off. */
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

/* What a request calls the longest answer it wants. */
static const char *length_name(enum sv_dialect_kind kind)
{
    return kind == SV_GENERATE    ? "max_new_tokens"
           : kind == SV_RESPONSES ? "max_output_tokens"
                                  : "max_tokens";
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

int sv_params_complete(struct sv_params *p, enum sv_dialect_kind kind,
                       const struct sv_serve_model *m, const struct sv_serve_options *o,
                       struct sv_api_err *e)
{
    int32_t limit = o->max_tokens ? o->max_tokens : m->info.context;

    default_sampling(p, &m->gen, !o->no_generation_config);
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
