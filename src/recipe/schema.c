/* schema.c: the one table of recipe keys. A row is type, range, default, resume class, aliases and one sentence; parser,
 * --set, help, JSON Schema and tests come from it. A key without a row does not exist.
 *
 * Resume classes: F fixed, the training's identity; R results then differ by rounding; L layout or speed, the bits stay
 * while train.reduce is tree; C free from the next step on. CDR_KEY_LATER rows and `.later` words are known and explained,
 * and refused when a recipe asks for anything but the default. Words in capitals (PATH, TEXT, SET) stand for free text.
 * Source: spec/interface.md, 3.1 to 3.5 and the alias list of 1.1.
 */
#include "recipe/recipe.h"

#define AT(field) offsetof(cdr_recipe, field)
#define ANY 1e18          /* upper end of an open range */

static const cdr_key table[] = {
    /* ---- top level ---- */
    { .key = "version", .type = CDR_KEY_INT, .resume = 'F', .at = AT(version), .def = "1", .min = 1, .max = 1, .help = "Format of this file." },
    { .key = "name", .type = CDR_KEY_TEXT, .resume = 'C', .at = AT(name), .def = "auto", .words = "TEXT", .def_help = "the file's name without .yaml",
      .help = "Name of the run, of a-z 0-9 . _ -; stands for {name} in paths." },
    { .key = "seed", .type = CDR_KEY_INT, .resume = 'F', .at = AT(seed), .def = "1", .min = 0, .max = ANY, .shortcut = "--seed",
      .help = "Every random draw is keyed by it." },
    { .key = "output_dir", .type = CDR_KEY_TEXT, .resume = 'C', .at = AT(output_dir), .def = "runs/{name}", .words = "PATH", .shortcut = "--out",
      .help = "Run directory: recipe, event log, checkpoints; one run at a time." },

    /* ---- model ---- */
    { .key = "model.path", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(model.path), .words = "PATH",
      .aliases = "name_or_path model_name_or_path pretrained_model_name_or_path base_model",
      .help = "Built-in model by bare name, or a description file ending in .yaml." },
    { .key = "model.weights", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(model.weights), .def = "auto", .words = "auto|random",
      .help = "auto: loaded where the model's directory has them; random: made by the family's rules." },
    { .key = "model.sizes", .type = CDR_KEY_PAIRS, .resume = 'F', .at = AT(model.sizes), .def = "{}",
      .help = "Sizes of the description to override, by their names; only with random weights." },
    { .key = "model.layers", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(model.layers), .def = "all", .words = "all|SET",
      .help = "Slice of the stack at true width; each layer keeps its kind." },
    { .key = "model.indexer", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(model.indexer), .def = "auto", .words = "auto|on|off",
      .help = "Sparse attention's indexers: as the checkpoint, added, or left out." },
    { .key = "model.vision", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(model.vision), .def = "off", .words = "off|frozen|train", .later = "frozen|train",
      .help = "off: the vision tower is carried, never used." },

    /* ---- data ---- */
    { .key = "data.train", .type = CDR_KEY_SOURCES, .resume = 'F', .at = AT(data.train), .words = "path|format|weight|name|train_on|columns|max_samples",
      .help = "What to train on: a path, a map with path, or a list of them, mixed by weight." },
    { .key = "data.eval", .type = CDR_KEY_SOURCES, .resume = 'C', .at = AT(data.eval), .def = "none",
      .words = "none|path|format|weight|name|train_on|columns|max_samples", .help = "Held-out data; or data.eval_fraction." },
    { .key = "data.eval_fraction", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(data.eval_fraction), .def = "0", .min = 0, .max = 0.5,
      .aliases = "val_size val_set_size", .help = "Held-out share without data.eval: the tail of text; of records, by hash." },
    { .key = "data.format", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.format), .def = "auto",
      .words = "auto|text|messages|sharegpt|alpaca|completion|tokens",
      .help = "Form of the records; auto: by each file's first record." },
    { .key = "data.tokenizer", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(data.tokenizer), .def = "model", .words = "model|byte|PATH",
      .help = "model: the model's own; byte: ids 0 to 255, then 256 special slots; or tiktoken.model, tokenizer.json, a directory with one of them." },
    { .key = "data.chat_format", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.chat_format), .def = "auto",
      .words = "auto|k3_xtml|kimi_k2|chatml|jinja|none", .def_help = "the model's", .help = "How conversations become tokens." },
    { .key = "data.chat_options.thinking", .type = CDR_KEY_BOOL, .resume = 'F', .at = AT(data.chat_thinking), .def = "false",
      .help = "Render with a reasoning channel." },
    { .key = "data.chat_options.thinking_effort", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.chat_thinking_effort),
      .def = "none", .words = "none|low|medium|high|max", .help = "Effort that the chat format announces." },
    { .key = "data.chat_options.system", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(data.chat_system), .def = "none",
      .words = "TEXT", .help = "System text that is put before each conversation." },
    { .key = "data.chat_options.tools", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.chat_tools), .def = "keep",
      .words = "keep|drop", .help = "Tool declarations of a conversation." },
    { .key = "data.train_on", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.train_on), .def = "auto", .words = "auto|assistant|last|all",
      .def_help = "assistant; of text: all", .help = "Turns that carry loss." },
    { .key = "data.train_eos", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.train_eos), .def = "turn",
      .words = "turn|last|none", .help = "Loss on the end-of-message token." },
    { .key = "data.mask_think", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.mask_think), .def = "none",
      .words = "none|empty|all", .help = "Reasoning without loss." },
    { .key = "data.untrained", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.untrained), .def = "error",
      .words = "error|drop", .help = "A sample without a trained token." },
    { .key = "data.long_samples", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(data.long_samples), .def = "auto",
      .words = "auto|split|drop|truncate|error", .help = "A sample over sequence_length; auto: text is split, conversations are dropped." },
    { .key = "data.max_docs", .type = CDR_KEY_INT, .resume = 'F', .at = AT(data.max_docs), .def = "auto", .words = "auto", .min = 1, .max = ANY,
      .def_help = "sequence_length / 64", .help = "Documents in one packed row at most; a row that reaches it is closed." },
    { .key = "data.pack", .type = CDR_KEY_BOOL, .resume = 'F', .at = AT(data.pack), .def = "true", .aliases = "packing sample_packing",
      .help = "Several documents in a row; attention and loss restart at each." },
    { .key = "data.pack_window", .type = CDR_KEY_INT, .resume = 'F', .at = AT(data.pack_window), .def = "1024", .min = 1, .max = ANY,
      .help = "Samples that the packer looks at together." },
    { .key = "data.shuffle", .type = CDR_KEY_BOOL, .resume = 'F', .at = AT(data.shuffle), .def = "true", .help = "Order = f(seed, epoch, index); else the file's." },
    { .key = "data.threads", .type = CDR_KEY_INT, .resume = 'L', .at = AT(data.threads), .def = "1", .min = 1, .max = 1024, .help = "Threads that read and tokenize." },
    { .key = "data.cache", .type = CDR_KEY_TEXT, .resume = 'L', .at = AT(data.cache), .def = "auto", .words = "auto|none|PATH",
      .def_help = "the cache of the environment", .help = "Where token caches are kept." },
    { .key = "data.image_root", .type = CDR_KEY_TEXT, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(data.image_root), .def = "auto", .words = "auto|PATH",
      .def_help = "the source's folder", .help = "Where pictures of conversations are looked up." },
    { .key = "data.image_max_patches", .type = CDR_KEY_INT, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(data.image_max_patches), .def = "65536",
      .min = 1, .max = ANY, .help = "Patches of one picture at most." },

    /* ---- train ---- */
    { .key = "train.steps", .type = CDR_KEY_INT, .resume = 'C', .at = AT(train.steps), .def = "none", .words = "none", .min = 0, .max = ANY,
      .aliases = "max_steps train_iters", .shortcut = "--steps", .help = "Optimizer steps; give steps or epochs." },
    { .key = "train.epochs", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(train.epochs), .def = "1", .words = "none", .min = 0, .max = ANY, .above = true,
      .aliases = "num_epochs num_train_epochs", .help = "Passes over the data; give steps or epochs." },
    { .key = "train.max_time", .type = CDR_KEY_DURATION, .resume = 'C', .at = AT(train.max_time), .def = "none", .words = "none", .min = 0, .max = ANY, .above = true,
      .help = "Ends there as if done: checkpoint, exit 0." },
    { .key = "train.sequence_length", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.sequence_length), .def = "4096", .min = 8, .max = 1 << 24, .multiple = 8,
      .aliases = "seq_len seq_length sequence_len max_seq_len max_seq_length max_context_length cutoff_len", .help = "Longest packed row, tokens." },
    { .key = "train.micro_batch_tokens", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.micro_batch_tokens), .def = "auto", .words = "auto", .min = 8,
      .max = 1 << 30, .def_help = "sequence_length", .help = "Tokens of one logical shard and of one pass of a rank; a multiple of sequence_length." },
    { .key = "train.global_batch_tokens", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.global_batch_tokens), .def = "auto", .words = "auto", .min = 8,
      .max = ANY, .def_help = "16 micro-batches", .help = "Tokens of an optimizer step on all ranks: a power of two times micro_batch_tokens." },
    { .key = "train.gradient_accumulation_steps", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.gradient_accumulation_steps), .def = "none",
      .words = "none", .min = 1, .max = 1 << 20, .help = "The other way to say global_batch_tokens; both only if they agree." },
    { .key = "train.reduce", .type = CDR_KEY_ENUM, .resume = 'R', .at = AT(train.reduce), .def = "tree", .words = "tree|free", .shortcut = "--reduce",
      .help = "Order of sums of gradients; tree: the same bits on every layout. free: cheaper, a running sum over micro-batches, the same bits on one layout." },
    { .key = "train.dsa_core", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(train.dsa_core), .def = "auto",
      .words = "auto|dense|gathered", .def_help = "dense below 16,384 tokens of sequence_length", .help = "Masked-dense or gathered sparse attention." },
    { .key = "train.trainable", .type = CDR_KEY_TEXTS, .resume = 'F', .at = AT(train.trainable), .def = "[all]", .words = "all|none|TEXT",
      .def_help = "all; under LoRA none", .help = "Base parameters that train: all, none, or patterns." },
    { .key = "train.freeze", .type = CDR_KEY_TEXTS, .resume = 'F', .at = AT(train.freeze), .def = "[]", .words = "TEXT",
      .help = "Patterns of parameters that do not train." },
    { .key = "train.balance", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(train.balance), .def = "auto", .words = "auto|quantile|sign|aux|none",
      .def_help = "the description's; under LoRA none", .help = "How the router's load is balanced." },
    { .key = "train.balance_bins", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.balance_bins), .def = "1000", .min = 64,
      .max = 1 << 20, .help = "Quantile balancing: bins." },
    { .key = "train.balance_ema", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(train.balance_ema), .def = "0", .min = 0, .max = 1,
      .help = "Quantile balancing: smoothing." },
    { .key = "train.balance_rate", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(train.balance_rate), .def = "0.001", .min = 0,
      .max = ANY, .above = true, .help = "Sign rule: step of the bias." },
    { .key = "train.aux_loss_coef", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(train.aux_loss_coef), .def = "0", .min = 0,
      .max = ANY, .def_help = "0; with balance aux 0.001", .help = "Weight of the auxiliary balance loss." },
    { .key = "train.indexer", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(train.indexer), .def = "auto",
      .words = "auto|frozen|train", .def_help = "train; under LoRA frozen", .help = "Whether sparse attention's indexers train." },
    { .key = "train.indexer_warmup_steps", .type = CDR_KEY_INT, .resume = 'F', .at = AT(train.indexer_warmup_steps), .def = "0",
      .min = 0, .max = ANY, .help = "Steps with dense attention and a KL over all keys." },
    { .key = "train.indexer_loss_coef", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(train.indexer_loss_coef), .def = "1",
      .min = 0, .max = ANY, .help = "Weight of the indexers' KL." },
    { .key = "train.on_nonfinite", .type = CDR_KEY_ENUM, .resume = 'C', .at = AT(train.on_nonfinite), .def = "stop", .words = "stop|skip",
      .help = "A step with a non-finite value stops the run, or is dropped and counted; more than 3 in a row stop." },

    /* ---- optimizer ---- */
    { .key = "optimizer.name", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(optimizer.name), .def = "adamw", .words = "adamw|muon",
      .help = "muon: matrices by Muon; embeddings, head, 1-D tensors and adapters by AdamW." },
    { .key = "optimizer.learning_rate", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(optimizer.learning_rate), .def = "auto", .words = "auto", .min = 0,
      .max = 3e38, .above = true, .aliases = "lr", .def_help = "from scratch 1e-3, full 1e-5, LoRA 2e-4", .help = "Peak learning rate." },
    { .key = "optimizer.weight_decay", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(optimizer.weight_decay), .def = "auto", .words = "auto", .min = 0,
      .max = 3e38, .def_help = "from scratch 0.1, else 0", .help = "Decoupled; never on 1-D tensors." },
    { .key = "optimizer.beta1", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(optimizer.beta1), .def = "0.9", .min = 0, .max = 1, .aliases = "adam_beta1",
      .help = "AdamW: decay of the first moment." },
    { .key = "optimizer.beta2", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(optimizer.beta2), .def = "0.95", .min = 0, .max = 1, .aliases = "adam_beta2",
      .help = "AdamW: decay of the second moment." },
    { .key = "optimizer.eps", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(optimizer.eps), .def = "1e-8", .min = 0, .max = 1, .above = true,
      .aliases = "adam_epsilon", .help = "AdamW: added to the root of the second moment." },
    { .key = "optimizer.max_grad_norm", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(optimizer.max_grad_norm), .def = "1", .min = 0, .max = ANY,
      .aliases = "clip_grad max_norm gradient_clipping", .help = "Global clipping; 0: off, still measured." },
    { .key = "optimizer.muon_momentum", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(optimizer.muon_momentum), .def = "0.95",
      .min = 0, .max = 1, .help = "Muon: momentum." },
    { .key = "optimizer.muon_nesterov", .type = CDR_KEY_BOOL, .resume = 'F', .at = AT(optimizer.muon_nesterov), .def = "true",
      .help = "Muon: Nesterov form of the momentum." },
    { .key = "optimizer.muon_iterations", .type = CDR_KEY_INT, .resume = 'F', .at = AT(optimizer.muon_iterations), .def = "5",
      .min = 1, .max = 100, .help = "Muon: Newton-Schulz iterations." },
    { .key = "optimizer.muon_scale", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(optimizer.muon_scale), .def = "0.2", .min = 0,
      .max = ANY, .above = true, .help = "Muon: update times this times the root of the larger side." },
    { .key = "optimizer.muon_per_head", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(optimizer.muon_per_head), .def = "auto",
      .words = "auto|true|false", .help = "Muon: each head's rows as a matrix of their own; auto: as the description says." },
    { .key = "optimizer.groups", .type = CDR_KEY_PAIRS, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(optimizer.groups), .def = "[]",
      .words = "match|learning_rate_scale|weight_decay", .help = "Learning rate and decay by pattern; the first match wins." },

    /* ---- schedule ---- */
    { .key = "schedule.name", .type = CDR_KEY_ENUM, .resume = 'C', .at = AT(schedule.name), .def = "cosine", .words = "cosine|wsd|linear|constant",
      .aliases = "type lr_scheduler lr_scheduler_type lr_decay_style", .help = "Shape of the learning rate after the warm-up." },
    { .key = "schedule.horizon", .type = CDR_KEY_INT, .resume = 'C', .at = AT(schedule.horizon), .def = "auto", .words = "auto", .min = 1, .max = ANY,
      .def_help = "train.steps", .help = "Steps over which the shape is drawn." },
    { .key = "schedule.warmup_steps", .type = CDR_KEY_INT, .resume = 'C', .at = AT(schedule.warmup_steps), .def = "none", .words = "none", .min = 0,
      .max = ANY, .help = "Steps of linear warm-up; give steps or ratio." },
    { .key = "schedule.warmup_ratio", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(schedule.warmup_ratio), .def = "0.01", .words = "none", .min = 0,
      .max = 1, .help = "Warm-up as a share of the horizon; give steps or ratio." },
    { .key = "schedule.min_lr_ratio", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(schedule.min_lr_ratio), .def = "0.1", .min = 0, .max = 1,
      .aliases = "min_lr_factor cosine_min_lr_ratio", .help = "Floor over the peak." },
    { .key = "schedule.decay_ratio", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(schedule.decay_ratio), .def = "0.2", .min = 0, .max = 1,
      .help = "wsd: last part of the run, in which the rate falls." },
    { .key = "schedule.decay_shape", .type = CDR_KEY_ENUM, .resume = 'C', .at = AT(schedule.decay_shape), .def = "linear", .words = "linear|cosine|sqrt",
      .help = "wsd: how the rate falls." },

    /* ---- lora ---- */
    { .key = "lora.rank", .type = CDR_KEY_INT, .resume = 'F', .at = AT(lora.rank), .def = "16", .min = 1, .max = 512,
      .aliases = "r lora_r lora_rank", .help = "Rank of the adapters." },
    { .key = "lora.alpha", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(lora.alpha), .def = "auto", .words = "auto", .min = 0,
      .max = ANY, .above = true, .aliases = "lora_alpha", .def_help = "2 * rank", .help = "Numerator of the adapters' scale." },
    { .key = "lora.scaling", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(lora.scaling), .def = "standard",
      .words = "standard|rslora", .help = "alpha / rank, or alpha over the root of the rank." },
    { .key = "lora.targets", .type = CDR_KEY_TEXTS, .resume = 'F', .at = AT(lora.targets),
      .def = "[attention, dense_mlp, shared_experts]", .words = "TEXT", .aliases = "target_modules lora_target lora_target_modules",
      .help = "Groups or patterns of linears; each entry must match." },
    { .key = "lora.exclude", .type = CDR_KEY_TEXTS, .resume = 'F', .at = AT(lora.exclude), .def = "[]", .words = "TEXT",
      .help = "Patterns that are left out." },
    { .key = "lora.layers", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(lora.layers), .def = "all", .words = "all|SET",
      .help = "Layers that get adapters." },
    { .key = "lora.rank_pattern", .type = CDR_KEY_PAIRS, .resume = 'F', .at = AT(lora.rank_pattern), .def = "{}",
      .help = "Rank by pattern; the first match wins." },
    { .key = "lora.alpha_pattern", .type = CDR_KEY_PAIRS, .resume = 'F', .at = AT(lora.alpha_pattern), .def = "{}",
      .help = "Alpha by pattern; the first match wins." },
    { .key = "lora.experts", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(lora.experts), .def = "none",
      .words = "none|per_expert|shared_outer", .help = "Adapters on routed experts." },
    { .key = "lora.expert_rank", .type = CDR_KEY_INT, .resume = 'F', .at = AT(lora.expert_rank), .def = "auto", .words = "auto",
      .min = 1, .max = 512, .def_help = "max(1, rank // top_k)", .help = "Rank of expert adapters." },
    { .key = "lora.init", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(lora.init), .def = "kaiming",
      .words = "kaiming|xavier|gaussian", .help = "Distribution of A; B is zero." },
    { .key = "lora.dropout", .type = CDR_KEY_REAL, .resume = 'F', .at = AT(lora.dropout), .def = "0", .min = 0, .max = 1,
      .help = "Only 0: stacked expert adapters do not allow dropout." },
    { .key = "lora.adapter", .type = CDR_KEY_TEXT, .resume = 'F', .at = AT(lora.adapter), .def = "none", .words = "none|PATH",
      .help = "Adapter to start from; its base hash must agree." },
    { .key = "lora.serve_with", .type = CDR_KEY_TEXTS, .resume = 'C', .at = AT(lora.serve_with), .def = "[]",
      .words = "peft|vllm|sglang|gguf", .help = "Refuse before step 0 what that consumer would drop." },

    /* ---- parallel ---- */
    { .key = "parallel.replicate", .type = CDR_KEY_INT, .resume = 'L', .at = AT(parallel.replicate), .def = "1", .min = 1, .max = 65536,
      .aliases = "dp_replicate dp_replicate_size data_parallel_replicate_degree", .help = "Replicas of the whole model." },
    { .key = "parallel.shard", .type = CDR_KEY_INT, .resume = 'L', .at = AT(parallel.shard), .def = "auto", .words = "auto", .min = 1, .max = 65536,
      .aliases = "dp_shard dp_shard_size fsdp fsdp_size data_parallel_shard_degree", .def_help = "the remaining ranks",
      .help = "Ranks over which weights, gradients and optimizer are sharded." },
    { .key = "parallel.context", .type = CDR_KEY_INT, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(parallel.context), .def = "1", .min = 1, .max = 65536,
      .aliases = "cp cp_size context_parallel_degree", .help = "Ranks that share one sequence." },
    { .key = "parallel.expert", .type = CDR_KEY_INT, .resume = 'L', .at = AT(parallel.expert), .def = "1", .min = 1, .max = 65536,
      .aliases = "ep ep_size expert_parallel_degree", .shortcut = "--ep", .help = "Ranks that share the routed experts; divides shard x context." },
    { .key = "parallel.tensor", .type = CDR_KEY_INT, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(parallel.tensor), .def = "1", .min = 1, .max = 65536,
      .aliases = "tp tp_size tensor_parallel_degree", .help = "Tensor parallelism." },
    { .key = "parallel.pipeline", .type = CDR_KEY_INT, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(parallel.pipeline), .def = "1", .min = 1,
      .max = 65536, .aliases = "pp pp_size pipeline_parallel_degree", .help = "Pipeline stages." },
    { .key = "parallel.transport", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(parallel.transport), .def = "auto", .words = "auto|single|shm|mpi|nccl",
      .later = "mpi|nccl", .help = "What ranks talk over." },
    { .key = "parallel.reshard_after_forward", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(parallel.reshard_after_forward), .def = "auto",
      .words = "auto|always|never", .help = "Gather weights again in backward, or keep them." },
    { .key = "parallel.prefetch", .type = CDR_KEY_INT, .resume = 'L', .at = AT(parallel.prefetch), .def = "1", .min = 0, .max = 64,
      .help = "Units gathered ahead." },
    { .key = "parallel.expert_placement", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(parallel.expert_placement), .def = "home",
      .words = "home|balanced|auto", .help = "balanced: redundant experts, the same rows on every rank." },
    { .key = "parallel.dispatch_factor", .type = CDR_KEY_REAL, .resume = 'L', .at = AT(parallel.dispatch_factor), .def = "1.25",
      .min = 1, .max = ANY, .help = "Receive buffer over the mean; further rows go in extra rounds." },
    { .key = "parallel.head", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(parallel.head), .def = "auto", .words = "auto|gather|pieces",
      .help = "How the loss reads a head that is split over ranks: gathered whole, or piece by piece from its owners (auto: pieces where they save 256 MiB)." },
    { .key = "parallel.hash_every", .type = CDR_KEY_INT, .resume = 'C', .at = AT(parallel.hash_every), .def = "100", .min = 0, .max = ANY,
      .help = "Steps between hashes of replicated tensors; 0: step 0 only." },
    { .key = "parallel.timeout", .type = CDR_KEY_DURATION, .resume = 'C', .at = AT(parallel.timeout), .def = "10s", .min = 0, .max = ANY, .above = true,
      .help = "Silence of a rank that counts as lost." },

    /* ---- memory ---- */
    { .key = "memory.device_limit", .type = CDR_KEY_BYTES, .resume = 'L', .at = AT(memory.device_limit), .def = "auto", .words = "auto", .min = 0,
      .max = 9e18, .above = true, .def_help = "the tier less its reserve", .help = "Bytes of the device that the compile keeps to." },
    { .key = "memory.host_limit", .type = CDR_KEY_BYTES, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.host_limit), .def = "0", .min = 0,
      .max = 9e18, .help = "Host bytes for swapped values." },
    { .key = "memory.disk_limit", .type = CDR_KEY_BYTES, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.disk_limit), .def = "0", .min = 0,
      .max = 9e18, .help = "File bytes for swapped values." },
    { .key = "memory.policy", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(memory.policy), .def = "auto", .words = "auto|keep|recompute",
      .help = "auto: keep what fits, else the cheapest mix; recompute: layer inputs only." },
    { .key = "memory.rules", .type = CDR_KEY_PAIRS, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.rules), .def = "[]",
      .words = "match|layers|policy|tier", .help = "Pins by value name, before memory.policy." },
    { .key = "memory.loss_chunk_tokens", .type = CDR_KEY_INT, .resume = 'R', .at = AT(memory.loss_chunk_tokens), .def = "auto", .words = "auto|all",
      .min = 1, .max = ANY, .help = "Loss over so many tokens at a time." },
    { .key = "memory.loss_chunk_vocab", .type = CDR_KEY_INT, .resume = 'R', .at = AT(memory.loss_chunk_vocab), .def = "auto", .words = "auto|all",
      .min = 1, .max = ANY, .help = "Loss over so many vocabulary rows at a time." },
    { .key = "memory.layer_chunk_tokens", .type = CDR_KEY_INT, .status = CDR_KEY_LATER, .resume = 'R', .at = AT(memory.layer_chunk_tokens), .def = "auto",
      .words = "auto|all", .min = 1, .max = ANY, .help = "Layer parts over so many tokens at a time." },
    { .key = "memory.swap_dir", .type = CDR_KEY_TEXT, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.swap_dir), .def = "auto", .words = "auto|PATH",
      .def_help = "output_dir", .help = "Where swapped values lie." },
    { .key = "memory.swap_ring", .type = CDR_KEY_BYTES, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.swap_ring), .def = "auto", .words = "auto",
      .min = 0, .max = 9e18, .help = "Bytes of the staging ring." },
    { .key = "memory.weights", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'L', .at = AT(memory.weights), .def = "resident",
      .words = "resident|stream", .help = "stream: frozen weights come from host or disk, layer by layer." },

    /* ---- precision ---- */
    { .key = "precision.compute", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(precision.compute), .def = "auto", .words = "auto|bf16|f32",
      .def_help = "bf16 where the machine has it", .help = "Activations and weights as kernels read them." },
    { .key = "precision.params", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(precision.params), .def = "auto", .words = "auto|bf16|f32",
      .def_help = "as precision.compute", .help = "Stored trained weights; master weights and optimizer states are F32." },
    { .key = "precision.experts", .type = CDR_KEY_ENUM, .resume = 'F', .at = AT(precision.experts), .def = "stored", .words = "stored|bf16|mxfp4",
      .help = "Frozen routed experts in memory; stored: as the description's row says first. Experts that train are as precision.params." },
    { .key = "precision.attention_output", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.attention_output), .def = "f32",
      .words = "f32|bf16", .help = "What the attention backward's delta reads." },
    { .key = "precision.gather", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.gather), .def = "bf16",
      .words = "bf16|f32", .help = "Weights on the wire; f32 where compute is f32." },
    { .key = "precision.reduce", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.reduce), .def = "f32", .words = "f32|bf16",
      .help = "Gradients on the wire." },
    { .key = "precision.dispatch", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.dispatch), .def = "bf16",
      .words = "bf16|fp8", .help = "Routed rows on the wire." },
    { .key = "precision.saved", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.saved), .def = "exact",
      .words = "exact|fp8", .help = "Activations that are kept for the backward." },
    { .key = "precision.qat", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'F', .at = AT(precision.qat), .def = "none", .words = "none|mxfp4",
      .help = "Train with experts rounded as they will be served." },

    /* ---- checkpoint ---- */
    { .key = "checkpoint.every", .type = CDR_KEY_EVERY, .resume = 'C', .at = AT(checkpoint.every), .def = "10min", .words = "duration|none",
      .aliases = "save_steps interval", .help = "Steps or time between checkpoints." },
    { .key = "checkpoint.at_end", .type = CDR_KEY_BOOL, .resume = 'C', .at = AT(checkpoint.at_end), .def = "true", .help = "One more when the run is done." },
    { .key = "checkpoint.keep", .type = CDR_KEY_INT, .resume = 'C', .at = AT(checkpoint.keep), .def = "2", .words = "all", .min = 1, .max = ANY,
      .aliases = "save_total_limit keep_latest_k", .help = "Complete ones kept." },
    { .key = "checkpoint.resume", .type = CDR_KEY_TEXT, .resume = 'C', .at = AT(checkpoint.resume), .def = "auto", .words = "auto|never|must|PATH",
      .shortcut = "--resume", .help = "auto: the newest complete one of output_dir, else start; never: refuses a used output_dir; a path: from another run." },
    { .key = "checkpoint.async", .type = CDR_KEY_BOOL, .resume = 'L', .at = AT(checkpoint.async), .def = "true",
      .help = "Written beside the next steps. This version writes between two steps either way, and prints the delay." },
    { .key = "checkpoint.final", .type = CDR_KEY_ENUM, .resume = 'C', .at = AT(checkpoint.final), .def = "auto", .words = "auto|none|peft|hf",
      .later = "hf", .help = "What lies in final/ for others to load." },
    { .key = "checkpoint.signals.save", .type = CDR_KEY_TEXTS, .resume = 'C', .at = AT(checkpoint.signals_save), .def = "[USR1]",
      .words = "USR1|USR2|HUP|INT|TERM", .help = "Signals that save; the file `save` in output_dir does the same." },
    { .key = "checkpoint.signals.save_exit", .type = CDR_KEY_TEXTS, .resume = 'C', .at = AT(checkpoint.signals_save_exit), .def = "[INT, TERM]",
      .words = "USR1|USR2|HUP|INT|TERM", .help = "Signals that save and stop; the file `stop` does the same." },

    /* ---- log ---- */
    { .key = "log.every", .type = CDR_KEY_INT, .resume = 'C', .at = AT(log.every), .def = "1", .min = 1, .max = ANY, .aliases = "logging_steps log_freq",
      .help = "Steps between step lines and step records." },
    { .key = "log.router_every", .type = CDR_KEY_INT, .resume = 'C', .at = AT(log.router_every), .def = "10", .min = 0, .max = ANY,
      .help = "Steps between router records; 0: none." },
    { .key = "log.level", .type = CDR_KEY_ENUM, .resume = 'C', .at = AT(log.level), .def = "info", .words = "error|warning|info|debug", .help = "What stderr shows." },
    { .key = "log.color", .type = CDR_KEY_ENUM, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(log.color), .def = "auto", .words = "auto|always|never",
      .help = "auto: on a terminal without NO_COLOR." },
    { .key = "log.profile", .type = CDR_KEY_TEXT, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(log.profile), .def = "none", .words = "none|SET",
      .help = "Steps to trace into profile/." },
    { .key = "log.tensorboard", .type = CDR_KEY_BOOL, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(log.tensorboard), .def = "false", .help = "Scalars into tb/." },
    { .key = "log.prometheus", .type = CDR_KEY_TEXT, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(log.prometheus), .def = "off", .words = "off|file|TEXT",
      .help = "metrics.prom, or an endpoint HOST:PORT." },
    { .key = "log.board", .type = CDR_KEY_TEXT, .status = CDR_KEY_LATER, .resume = 'C', .at = AT(log.board), .def = "off", .words = "off|TEXT",
      .help = "Live page at HOST:PORT." },

    /* ---- eval ---- */
    { .key = "eval.every", .type = CDR_KEY_EVERY, .resume = 'C', .at = AT(eval.every), .def = "none", .words = "none", .aliases = "eval_steps",
      .help = "Steps between evaluations; also at the end." },
    { .key = "eval.at_start", .type = CDR_KEY_BOOL, .resume = 'C', .at = AT(eval.at_start), .def = "false", .help = "Evaluate before the first step." },
    { .key = "eval.tokens", .type = CDR_KEY_INT, .resume = 'C', .at = AT(eval.tokens), .def = "all", .words = "all", .min = 1, .max = ANY,
      .help = "Held-out tokens that are used: always the same first ones." },

    /* ---- generate ---- */
    { .key = "generate.every", .type = CDR_KEY_EVERY, .resume = 'C', .at = AT(generate.every), .def = "none", .words = "none",
      .help = "Steps between samples while training." },
    { .key = "generate.prompts", .type = CDR_KEY_TEXTS, .resume = 'C', .at = AT(generate.prompts), .def = "[]", .words = "TEXT", .help = "Texts to continue." },
    { .key = "generate.max_new_tokens", .type = CDR_KEY_INT, .resume = 'C', .at = AT(generate.max_new_tokens), .def = "128", .min = 1, .max = 1 << 24,
      .shortcut = "--max-new-tokens", .help = "Tokens of one sample at most." },
    { .key = "generate.temperature", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(generate.temperature), .def = "1", .min = 0, .max = 1e3,
      .shortcut = "--temperature", .help = "0: greedy." },
    { .key = "generate.top_p", .type = CDR_KEY_REAL, .resume = 'C', .at = AT(generate.top_p), .def = "1", .min = 0, .max = 1, .shortcut = "--top-p",
      .help = "Smallest set of tokens with this much probability; 1: all." },
    { .key = "generate.top_k", .type = CDR_KEY_INT, .resume = 'C', .at = AT(generate.top_k), .def = "0", .min = 0, .max = ANY, .shortcut = "--top-k",
      .help = "Most probable tokens; 0: all." },
    { .key = "generate.stop", .type = CDR_KEY_TEXTS, .resume = 'C', .at = AT(generate.stop), .def = "[]", .words = "TEXT", .help = "Texts that end a sample." },
    { .key = "generate.seed", .type = CDR_KEY_INT, .resume = 'C', .at = AT(generate.seed), .def = "auto", .words = "auto", .min = 0, .max = ANY,
      .def_help = "seed", .help = "Seed of the draws." },

    /* ---- machine ---- */
    { .key = "machine.file", .type = CDR_KEY_TEXT, .resume = 'L', .at = AT(machine.file), .def = "auto", .words = "auto|PATH", .shortcut = "--machine",
      .help = "auto: this machine; a built-in name, or a machine file." },
    { .key = "machine.devices", .type = CDR_KEY_INT, .resume = 'L', .at = AT(machine.devices), .def = "auto", .words = "auto", .min = 1, .max = 65536,
      .shortcut = "--devices", .help = "plan: ranks to compile for; in train it must equal the launched ranks." },
    { .key = "machine.device", .type = CDR_KEY_ENUM, .resume = 'L', .at = AT(machine.device), .def = "auto", .words = "auto|cpu|cuda",
      .help = "What runs the programs." },
    { .key = "machine.threads", .type = CDR_KEY_INT, .resume = 'L', .at = AT(machine.threads), .def = "auto", .words = "auto", .min = 1, .max = 1024,
      .def_help = "OMP_NUM_THREADS, else this rank's cores", .help = "Threads of a rank." },
};

const cdr_key *cdr_recipe_schema(int *n)
{
    if (n) *n = CDR_COUNT(table);
    return table;
}

int cdr_recipe_key(const char *key)
{
    for (int i = 0; i < CDR_COUNT(table); i++)
        if (strcmp(table[i].key, key) == 0) return i;
    return -1;
}

bool cdr__word_in(const char *words, const char *word, size_t n, int *index)
{
    int i = 0;
    for (const char *p = words; p && *p; i++) {
        size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, word, n) == 0) {
            if (index) *index = i;
            return true;
        }
        p += len;
        if (*p) p++;
    }
    return false;
}

int cdr__recipe_alias(const char *section, const char *name)
{
    size_t ns = strlen(section), nn = strlen(name);
    for (int i = 0; i < CDR_COUNT(table); i++) {
        const char *k = table[i].key, *p = table[i].aliases;
        if (!p || strncmp(k, section, ns) != 0 || k[ns] != '.' || strchr(k + ns + 1, '.')) continue;
        while (*p) {
            size_t len = strcspn(p, " ");
            if (len == nn && strncmp(p, name, nn) == 0) return i;
            p += len + (p[len] == ' ');
        }
    }
    return -1;
}

int cdr__recipe_shortcut(const char *flag, size_t n)
{
    if (n == 2 && strncmp(flag, "-o", 2) == 0) { flag = "--out"; n = 5; }
    for (int i = 0; i < CDR_COUNT(table); i++)
        if (table[i].shortcut && strlen(table[i].shortcut) == n && strncmp(table[i].shortcut, flag, n) == 0) return i;
    return -1;
}
