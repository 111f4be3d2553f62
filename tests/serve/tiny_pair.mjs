// tiny_pair.mjs NAME DIR - DIR/target and DIR/draft: the checkpoint tests/golden/tiny/NAME with a tokenizer, as many ids as
// that one knows and a chat template that shows images, and a random DFlash draft of it.
//
// Called by load.test.sh: most tiny checkpoints have no tokenizer, and some fewer ids than the shared one.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

const [name, dir] = process.argv.slice(2);
const from = "tests/golden/tiny/" + name, words = "tests/golden/tiny/pair_target/", LEAST = 300, BLOCK = 16;
const json = (path) => JSON.parse(readFileSync(path, "utf8"));

function read(path, into) {
  const file = readFileSync(path), n = Number(file.readBigUInt64LE(0));
  for (const [key, t] of Object.entries(JSON.parse(file.toString("utf8", 8, 8 + n)))) {
    if (key === "__metadata__") continue;
    into[key] = { dtype: t.dtype, shape: t.shape, data: file.subarray(8 + n + t.data_offsets[0], 8 + n + t.data_offsets[1]) };
  }
}
function write(path, tensors) {
  const header = {}, parts = [];
  let at = 0;
  for (const [key, t] of Object.entries(tensors)) {
    header[key] = { dtype: t.dtype, shape: t.shape, data_offsets: [at, at += t.data.length] };
    parts.push(t.data);
  }
  const text = JSON.stringify(header), head = Buffer.alloc(8 + Math.ceil(text.length / 8) * 8, " ");
  head.writeBigUInt64LE(BigInt(head.length - 8));
  head.write(text, 8);
  writeFileSync(path, Buffer.concat([head, ...parts]));
}

// ---------------------------------------------------------------- the target

const config = json(from + "/config.json"), text = config.text_config ?? config, tensors = {};
for (const file of readdirSync(from)) if (file.endsWith(".safetensors")) read(`${from}/${file}`, tensors);
if (text.vocab_size < LEAST) {
  for (const key of Object.keys(tensors).filter((k) => /(embed_tokens|lm_head)\.weight$/.test(k))) {
    const t = tensors[key], row = t.data.length / t.shape[0];
    const more = Array.from({ length: LEAST - t.shape[0] }, (_, i) => t.data.subarray((i % t.shape[0]) * row, (i % t.shape[0] + 1) * row));
    tensors[key] = { ...t, shape: [LEAST, t.shape[1]], data: Buffer.concat([t.data, ...more]) };
  }
  text.vocab_size = LEAST;
}
mkdirSync(dir + "/target", { recursive: true });
write(dir + "/target/model.safetensors", tensors);
writeFileSync(dir + "/target/config.json", JSON.stringify(config));
for (const file of readdirSync(from)) if (/^(generation|preprocessor)_config/.test(file)) writeFileSync(`${dir}/target/${file}`, readFileSync(`${from}/${file}`));
const tokenizer = json(words + "tokenizer.json"), settings = json(words + "tokenizer_config.json");
if (name.includes("_vl_")) {
  for (const [id, content] of [[config.vision_start_token_id, "<|vision_start|>"], [config.vision_end_token_id, "<|vision_end|>"], [config.image_token_id, "<|image_pad|>"]])
    tokenizer.added_tokens.push({ ...tokenizer.added_tokens[0], id, content });
  settings.chat_template = "{% for m in messages %}{{ m.role + ': ' }}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}" +
    "{% if p.type == 'text' %}{{ p.text }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}assistant: ";
}
writeFileSync(dir + "/target/tokenizer.json", JSON.stringify(tokenizer));
writeFileSync(dir + "/target/tokenizer_config.json", JSON.stringify(settings));

// ---------------------------------------------------------------- the draft

let seed = 5;
function random() {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return seed / 4294967296 - 0.5;
}
function put(draft, key, shape, norm) {
  const values = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => (norm ? 1 : 0.6 * random()));
  draft[key] = { dtype: "F32", shape, data: Buffer.from(values.buffer) };
}
const hidden = text.hidden_size, heads = 2, size = 16, mlp = 64, draft = {};
put(draft, "fc.weight", [hidden, 2 * hidden]);
put(draft, "hidden_norm.weight", [hidden], true);
put(draft, "norm.weight", [hidden], true);
for (const [key, shape] of Object.entries({
  "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_norm": [size], "self_attn.k_norm": [size],
  "self_attn.q_proj": [heads * size, hidden], "self_attn.k_proj": [size, hidden], "self_attn.v_proj": [size, hidden],
  "self_attn.o_proj": [hidden, heads * size], "mlp.gate_proj": [mlp, hidden], "mlp.up_proj": [mlp, hidden], "mlp.down_proj": [hidden, mlp],
})) put(draft, `layers.0.${key}.weight`, shape, key.includes("norm"));
mkdirSync(dir + "/draft");
write(dir + "/draft/model.safetensors", draft);
writeFileSync(dir + "/draft/config.json", JSON.stringify({
  architectures: ["DFlashDraftModel"], hidden_act: "silu", hidden_size: hidden, intermediate_size: mlp, num_hidden_layers: 1,
  num_attention_heads: heads, num_key_value_heads: 1, head_dim: size, vocab_size: text.vocab_size, max_position_embeddings: 1024,
  rms_norm_eps: 1e-6, rope_theta: 10000, tie_word_embeddings: false, torch_dtype: "float32", eos_token_id: 2, bos_token_id: 1,
  block_size: BLOCK, num_target_layers: text.num_hidden_layers,
  dflash_config: { mask_token_id: text.vocab_size - 1, target_layer_ids: [0, text.num_hidden_layers - 2] },
}));
