"""verl's keys that work here, each with its effect, through the schema's field of that path or the named targets."""

from __future__ import annotations

from argosy.config.keys.entry import Honoured

_MODEL, _ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))

_REWARD_KWARGS = {
    "overlong_buffer_cfg.enable": "Whether long answers lose reward.",
    "overlong_buffer_cfg.len": "Over how many tokens the penalty grows.",
    "overlong_buffer_cfg.penalty_factor": "The whole penalty.",
    "overlong_buffer_cfg.log": "Whether the penalty is among the metrics.",
    "max_resp_len": "The length at which the penalty is whole.",
}

_SCORER = "argosy.reward.model"

HONOURED: dict[str, Honoured] = {
    # data
    "data.train_files": Honoured("The rows that are trained on."),
    "data.val_files": Honoured("The rows that are validated on."),
    "data.train_max_samples": Honoured("Fewer training rows, so fewer steps per data epoch."),
    "data.val_max_samples": Honoured("Fewer validation rows."),
    "data.prompt_key": Honoured("The column that prompts are read from."),
    "data.reward_fn_key": Honoured("The column that chooses the scorer."),
    "data.max_prompt_length": Honoured(
        "The limit that filtering and truncation use, and part of the default max_model_len."
    ),
    "data.max_response_length": Honoured("The longest response that is sampled."),
    "data.train_batch_size": Honoured("Prompts per step, so steps per data epoch."),
    "data.gen_batch_size": Honoured("Prompts per generation batch of dynamic sampling."),
    "data.val_batch_size": Honoured("Validation prompts in flight at once."),
    "data.shuffle": Honoured("Whether each data epoch has its own order or the file's."),
    "data.seed": Honoured("Which orders those are."),
    "data.validation_shuffle": Honoured("Which rows val_max_samples keeps."),
    "data.filter_overlong_prompts": Honoured("Whether overlong rows are dropped at the start."),
    "data.truncation": Honoured("What happens to an overlong prompt: error, left, right, middle."),
    "data.trust_remote_code": Honoured("Whether the tokenizer's own code may run."),
    "data.apply_chat_template_kwargs": Honoured("Arguments that the chat template sees."),
    # model
    f"{_MODEL}.path": Honoured("The model that is loaded."),
    f"{_MODEL}.tokenizer_path": Honoured("The tokenizer that is loaded."),
    f"{_MODEL}.custom_chat_template": Honoured("The template that turns messages into tokens."),
    f"{_MODEL}.override_config": Honoured("Fields of the model's config."),
    f"{_MODEL}.trust_remote_code": Honoured("Whether the model's own code may run."),
    f"{_MODEL}.enable_activation_offload": Honoured("Where activations wait for the backward pass; the result stays."),
    f"{_MODEL}.lora_rank": Honoured("How many numbers of each layer train; 0: all of them."),
    f"{_MODEL}.lora_alpha": Honoured("How strongly the adapter acts."),
    f"{_MODEL}.target_modules": Honoured("Which layers get an adapter."),
    f"{_MODEL}.exclude_modules": Honoured("Which of them don't."),
    f"{_MODEL}.lora_adapter_path": Honoured("The adapter that training starts from."),
    f"{_MODEL}.enable_gradient_checkpointing": Honoured("Memory against time in the backward pass; the result stays."),
    # actor
    f"{_ACTOR}.ppo_mini_batch_size": Honoured("Optimizer steps per training step."),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": Honoured("Sequences per forward/backward; the result stays."),
    f"{_ACTOR}.use_dynamic_bsz": Honoured("Micro-batches by tokens in place of by sequences; the result stays."),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": Honoured("Tokens per micro-batch; the result stays."),
    f"{_ACTOR}.ppo_epochs": Honoured("Passes over each step's batch."),
    f"{_ACTOR}.shuffle": Honoured("Which sequences share a mini-batch."),
    f"{_ACTOR}.data_loader_seed": Honoured("The seed of that shuffling."),
    f"{_ACTOR}.clip_ratio": Honoured("Both clip bounds, unless _low or _high is set."),
    f"{_ACTOR}.clip_ratio_low": Honoured("The lower clip bound."),
    f"{_ACTOR}.clip_ratio_high": Honoured("The upper clip bound."),
    f"{_ACTOR}.clip_ratio_c": Honoured("The dual-clip bound for negative advantages."),
    f"{_ACTOR}.policy_loss.loss_mode": Honoured("The policy loss."),
    f"{_ACTOR}.policy_loss.clip_cov_ratio": Honoured("How many tokens clip_cov leaves out."),
    f"{_ACTOR}.policy_loss.clip_cov_lb": Honoured("From which covariance on clip_cov draws them."),
    f"{_ACTOR}.policy_loss.clip_cov_ub": Honoured("Up to which covariance clip_cov draws them."),
    f"{_ACTOR}.policy_loss.kl_cov_ratio": Honoured("How many tokens kl_cov penalises."),
    f"{_ACTOR}.policy_loss.ppo_kl_coef": Honoured("The weight of kl_cov's penalty."),
    f"{_ACTOR}.policy_loss.dro_beta": Honoured("The weight of dro's penalty."),
    f"{_ACTOR}.tau_pos": Honoured("sapo's gate at positive advantages."),
    f"{_ACTOR}.tau_neg": Honoured("sapo's gate at the others."),
    f"{_ACTOR}.loss_agg_mode": Honoured("How token losses become one number."),
    f"{_ACTOR}.loss_scale_factor": Honoured("The divisor of seq-mean-token-sum-norm."),
    f"{_ACTOR}.entropy_coeff": Honoured("The weight of the entropy bonus."),
    f"{_ACTOR}.calculate_entropy": Honoured("Whether actor/entropy is reported while its weight is 0."),
    f"{_ACTOR}.use_kl_loss": Honoured("Whether the KL to the reference is in the loss, and the reference runs."),
    f"{_ACTOR}.kl_loss_coef": Honoured("The weight of that KL."),
    f"{_ACTOR}.kl_loss_type": Honoured("The estimator of that KL."),
    f"{_ACTOR}.grad_clip": Honoured("The bound of the gradient's norm."),
    f"{_ACTOR}.optim.lr": Honoured("The learning rate."),
    f"{_ACTOR}.optim.optimizer": Honoured("AdamW, or AdamW8bit with small moments."),
    f"{_ACTOR}.optim.optimizer_impl": Honoured("Whose optimizer it is."),
    f"{_ACTOR}.optim.override_optimizer_config": Honoured("More settings of the optimizer."),
    f"{_ACTOR}.optim.weight_decay": Honoured("The weight decay."),
    f"{_ACTOR}.optim.betas": Honoured("Adam's decay rates."),
    f"{_ACTOR}.optim.eps": Honoured("Adam's ε."),
    f"{_ACTOR}.optim.lr_warmup_steps": Honoured("Steps of warm-up."),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": Honoured("Share of the run that is warm-up."),
    f"{_ACTOR}.optim.lr_scheduler_type": Honoured("The schedule after the warm-up."),
    f"{_ACTOR}.optim.min_lr_ratio": Honoured("Where a falling schedule ends."),
    f"{_ACTOR}.optim.num_cycles": Honoured("Periods of the cosine."),
    f"{_ACTOR}.optim.total_training_steps": Honoured("The schedule's length."),
    f"{_ACTOR}.optim.warmup_style": Honoured(
        "Older name of lr_scheduler_type.", targets=(f"{_ACTOR}.optim.lr_scheduler_type",)
    ),
    f"{_ACTOR}.optim.clip_grad": Honoured("Newer name of grad_clip.", targets=(f"{_ACTOR}.grad_clip",)),
    f"{_ACTOR}.strategy": Honoured("How ranks hold the model between them."),
    f"{_ACTOR}.megatron.tensor_model_parallel_size": Honoured(
        "Ranks that divide each matrix.", targets=("argosy.trainer.tensor_parallel_size",)
    ),
    f"{_ACTOR}.fsdp_config.strategy": Honoured("Another name of actor.strategy.", targets=(f"{_ACTOR}.strategy",)),
    f"{_ACTOR}.fsdp_config.fsdp_size": Honoured("Ranks that hold one copy of the parameters; the result stays."),
    f"{_ACTOR}.fsdp_config.reshard_after_forward": Honoured("When gathered parameters are dropped; the result stays."),
    f"{_ACTOR}.fsdp_config.forward_prefetch": Honoured("When parameters are gathered; the result stays."),
    f"{_ACTOR}.fsdp_config.model_dtype": Honoured("The type of master weights: fp32."),
    f"{_ACTOR}.fsdp_config.dtype": Honoured("The type of forward and backward."),
    f"{_ACTOR}.fsdp_config.param_offload": Honoured("Where parameters are between their uses; the result stays."),
    f"{_ACTOR}.fsdp_config.optimizer_offload": Honoured("Where the optimizer's state is between steps."),
    f"{_ACTOR}.fsdp_config.offload_policy": Honoured(
        "Another name of param_offload.", targets=(f"{_ACTOR}.fsdp_config.param_offload",)
    ),
    f"{_ACTOR}.ulysses_sequence_parallel_size": Honoured("Ranks that divide each packed batch; the result stays."),
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size": Honoured(
        "Older name of actor.ulysses_sequence_parallel_size.", targets=(f"{_ACTOR}.ulysses_sequence_parallel_size",)
    ),
    f"{_ACTOR}.use_torch_compile": Honoured("Whether the layers are compiled; the result stays."),
    f"{_ACTOR}.fsdp_config.use_torch_compile": Honoured(
        "Another name of actor.use_torch_compile.", targets=(f"{_ACTOR}.use_torch_compile",)
    ),
    # rollout
    f"{_ROLLOUT}.name": Honoured("The engine."),
    f"{_ROLLOUT}.tensor_model_parallel_size": Honoured("Processes of one vllm server that divide each matrix."),
    f"{_ROLLOUT}.gpu_memory_utilization": Honoured("The share of a device's memory that vllm takes."),
    f"{_ROLLOUT}.enforce_eager": Honoured("Whether vllm runs without captured graphs and compilation."),
    f"{_ROLLOUT}.enable_chunked_prefill": Honoured("Whether vllm computes long prompts in pieces."),
    f"{_ROLLOUT}.enable_prefix_caching": Honoured("Whether vllm computes equal beginnings of prompts once."),
    f"{_ROLLOUT}.max_num_seqs": Honoured("Sequences generated at once.", targets=("argosy.rollout.slot_count",)),
    f"{_ROLLOUT}.max_num_batched_tokens": Honoured(
        "Tokens of prompts that one step takes in.", targets=("argosy.rollout.prefill_token_budget",)
    ),
    f"{_ROLLOUT}.engine_kwargs": Honoured("More arguments of vllm."),
    f"{_ROLLOUT}.n": Honoured("Responses per prompt."),
    f"{_ROLLOUT}.do_sample": Honoured("Sampling or greedy decoding in training."),
    f"{_ROLLOUT}.temperature": Honoured("The temperature of sampling and of every log-prob."),
    f"{_ROLLOUT}.top_k": Honoured("The top-k cut."),
    f"{_ROLLOUT}.top_p": Honoured("The top-p cut."),
    f"{_ROLLOUT}.repetition_penalty": Honoured("The penalty on tokens already seen."),
    f"{_ROLLOUT}.ignore_eos": Honoured("Whether the end token ends a response."),
    f"{_ROLLOUT}.max_model_len": Honoured("The longest prompt + response."),
    f"{_ROLLOUT}.dtype": Honoured("The engine's type.", targets=("argosy.rollout.dtype",)),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": Honoured(
        "Sequences per forward of old log-probs; the result stays."
    ),
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": Honoured("Those forwards by tokens; the result stays."),
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": Honoured("Tokens per such forward; the result stays."),
    f"{_ROLLOUT}.val_kwargs.do_sample": Honoured("Sampling or greedy decoding in validation."),
    f"{_ROLLOUT}.val_kwargs.n": Honoured("Responses per validation prompt."),
    f"{_ROLLOUT}.val_kwargs.temperature": Honoured("The temperature of validation."),
    f"{_ROLLOUT}.val_kwargs.top_k": Honoured("The top-k cut of validation."),
    f"{_ROLLOUT}.val_kwargs.top_p": Honoured("The top-p cut of validation."),
    f"{_ROLLOUT}.multi_turn.enable": Honoured("Whether agent loops answer the prompts."),
    f"{_ROLLOUT}.multi_turn.format": Honoured("How tool calls are read."),
    f"{_ROLLOUT}.multi_turn.tool_config_path": Honoured("The tools."),
    f"{_ROLLOUT}.multi_turn.interaction_config_path": Honoured("The simulated users."),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": Honoured("After which turn of the policy a sample ends."),
    f"{_ROLLOUT}.multi_turn.max_user_turns": Honoured("How often tools and users may speak."),
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": Honoured("Calls of one turn that are made."),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": Honoured("Characters of a result that the model sees."),
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": Honoured("Which part of a longer result that is."),
    f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode": Honoured(
        "Whether a chat template that rewrites earlier turns is refused."
    ),
    f"{_ROLLOUT}.agent.default_agent_loop": Honoured("The agent loop of rows that name none."),
    f"{_ROLLOUT}.agent.agent_loop_config_path": Honoured("Agent loops of one's own."),
    # ref
    f"{_REF}.log_prob_micro_batch_size_per_gpu": Honoured("Sequences per forward of the reference; the result stays."),
    f"{_REF}.log_prob_use_dynamic_bsz": Honoured("Those forwards by tokens; the result stays."),
    f"{_REF}.log_prob_max_token_len_per_gpu": Honoured("Tokens per such forward; the result stays."),
    # critic
    "critic.enable": Honoured("Whether the critic runs; what the estimator has no use for is refused."),
    "critic.model.path": Honoured("The model that the critic starts from."),
    "critic.model.tokenizer_path": Honoured("The tokenizer in the critic's exports."),
    "critic.model.override_config": Honoured("Fields of the critic's config."),
    "critic.model.trust_remote_code": Honoured("Whether the critic's own code may run."),
    "critic.model.enable_gradient_checkpointing": Honoured("Memory against time in its backward; the result stays."),
    "critic.ppo_mini_batch_size": Honoured("The critic's optimizer steps per training step."),
    "critic.ppo_micro_batch_size_per_gpu": Honoured("Sequences per forward/backward; the result stays."),
    "critic.forward_micro_batch_size_per_gpu": Honoured("Sequences per forward of values; the result stays."),
    "critic.use_dynamic_bsz": Honoured("Micro-batches by tokens in place of by sequences; the result stays."),
    "critic.ppo_max_token_len_per_gpu": Honoured("Tokens per micro-batch; the result stays."),
    "critic.forward_max_token_len_per_gpu": Honoured("Tokens per forward of values; the result stays."),
    "critic.ppo_epochs": Honoured("Passes of the critic over each step's batch."),
    "critic.shuffle": Honoured("Which sequences share one of its mini-batches."),
    "critic.data_loader_seed": Honoured("The seed of that shuffling."),
    "critic.cliprange_value": Honoured("How far a value may move in one update."),
    "critic.loss_agg_mode": Honoured("How its token losses become one number."),
    "critic.grad_clip": Honoured("The bound of its gradient's norm."),
    "critic.optim.lr": Honoured("Its learning rate."),
    "critic.optim.optimizer": Honoured("AdamW, or AdamW8bit with small moments."),
    "critic.optim.optimizer_impl": Honoured("Whose optimizer it is."),
    "critic.optim.override_optimizer_config": Honoured("More settings of the optimizer."),
    "critic.optim.weight_decay": Honoured("Its weight decay."),
    "critic.optim.betas": Honoured("Adam's decay rates."),
    "critic.optim.eps": Honoured("Adam's ε."),
    "critic.optim.lr_warmup_steps": Honoured("Steps of warm-up."),
    "critic.optim.lr_warmup_steps_ratio": Honoured("Share of the run that is warm-up."),
    "critic.optim.lr_scheduler_type": Honoured("The schedule after the warm-up."),
    "critic.optim.min_lr_ratio": Honoured("Where a falling schedule ends."),
    "critic.optim.num_cycles": Honoured("Periods of the cosine."),
    "critic.optim.total_training_steps": Honoured("The schedule's length."),
    "critic.optim.warmup_style": Honoured(
        "Older name of lr_scheduler_type.", targets=("critic.optim.lr_scheduler_type",)
    ),
    "critic.optim.clip_grad": Honoured("Newer name of grad_clip.", targets=("critic.grad_clip",)),
    "critic.fsdp_config.fsdp_size": Honoured("Ranks that hold one copy of its parameters; the result stays."),
    "critic.fsdp_config.reshard_after_forward": Honoured("When its gathered parameters are dropped."),
    "critic.fsdp_config.forward_prefetch": Honoured("When its parameters are gathered; the result stays."),
    "critic.fsdp_config.model_dtype": Honoured("The type of master weights: fp32."),
    "critic.fsdp_config.dtype": Honoured("The type of forward and backward."),
    "critic.fsdp_config.param_offload": Honoured("Where its parameters are between their uses; the result stays."),
    "critic.fsdp_config.optimizer_offload": Honoured("Where its optimizer's state is between steps."),
    "critic.fsdp_config.offload_policy": Honoured(
        "Another name of param_offload.", targets=("critic.fsdp_config.param_offload",)
    ),
    "critic.model.enable_activation_offload": Honoured("Where its activations wait for the backward pass."),
    "critic.ulysses_sequence_parallel_size": Honoured("Its ranks that divide each packed batch; the result stays."),
    "critic.fsdp_config.ulysses_sequence_parallel_size": Honoured(
        "Older name of critic.ulysses_sequence_parallel_size.", targets=("critic.ulysses_sequence_parallel_size",)
    ),
    # algorithm
    "algorithm.adv_estimator": Honoured("The advantage estimator: grpo."),
    "algorithm.norm_adv_by_std_in_grpo": Honoured("GRPO, or Dr.GRPO's advantages without the standard deviation."),
    "algorithm.gamma": Honoured("The discount of later rewards, where the estimator has one."),
    "algorithm.lam": Honoured("GAE's λ."),
    "algorithm.gdpo_reward_keys": Honoured("The numbers of the scorer that gdpo normalises each on its own."),
    "algorithm.gdpo_reward_weights": Honoured("Their weights."),
    "algorithm.filter_groups.enable": Honoured("Dynamic sampling: groups that teach nothing make room for others."),
    "algorithm.filter_groups.metric": Honoured("Which number must differ within a group."),
    "algorithm.filter_groups.max_num_gen_batches": Honoured("Generation batches after which a step is given up."),
    "algorithm.rollout_correction.rollout_is": Honoured("Importance weights of tokens or sequences."),
    "algorithm.rollout_correction.rollout_is_threshold": Honoured("Their truncation (2.0) or band (0.5_2.0)."),
    "algorithm.rollout_correction.rollout_is_batch_normalize": Honoured("Whether they are divided by their mean."),
    "algorithm.rollout_correction.rollout_rs": Honoured("The criteria by which tokens or sequences are rejected."),
    "algorithm.rollout_correction.rollout_rs_threshold": Honoured("Their thresholds."),
    "algorithm.rollout_correction.bypass_mode": Honoured("The engine's log-probs stand for the old ones."),
    "algorithm.rollout_correction.loss_type": Honoured("The loss of bypass_mode: ppo_clip or reinforce."),
    "algorithm.use_kl_in_reward": Honoured("Whether the KL to the reference is in the reward, and the reference runs."),
    "algorithm.kl_penalty": Honoured("The estimator of that KL."),
    "algorithm.kl_ctrl.type": Honoured("Whether its coefficient is steered."),
    "algorithm.kl_ctrl.kl_coef": Honoured("The coefficient."),
    "algorithm.kl_ctrl.horizon": Honoured("How fast it is steered."),
    "algorithm.kl_ctrl.target_kl": Honoured("The KL that is aimed at."),
    # reward
    "custom_reward_function.path": Honoured("The file with the user's scorer."),
    "custom_reward_function.name": Honoured("The function in it."),
    "custom_reward_function.reward_kwargs": Honoured("Its further arguments."),
    "reward.custom_reward_function.path": Honoured(
        "Newer name of custom_reward_function.path.", targets=("custom_reward_function.path",)
    ),
    "reward.custom_reward_function.name": Honoured(
        "Newer name of custom_reward_function.name.", targets=("custom_reward_function.name",)
    ),
    "reward.custom_reward_function.reward_kwargs": Honoured(
        "Newer name of custom_reward_function.reward_kwargs.", targets=("custom_reward_function.reward_kwargs",)
    ),
    "reward_model.enable": Honoured("Whether a reward model scores every sample."),
    "reward_model.model.path": Honoured("The reward model.", targets=(f"{_SCORER}.path",)),
    "reward_model.model.input_tokenizer": Honoured(
        "null: the reward model reads the policy's tokens; else conversations in its own chat template.",
        targets=(f"{_SCORER}.input_tokenizer",),
    ),
    "reward_model.model.trust_remote_code": Honoured(
        "Whether the reward model's folder may run its own Python.", targets=(f"{_SCORER}.trust_remote_code",)
    ),
    "reward_model.max_length": Honoured("Most tokens that the reward model reads.", targets=(f"{_SCORER}.max_length",)),
    "reward_model.forward_max_token_len_per_gpu": Honoured(
        "Most tokens of one forward pass of the reward model.", targets=(f"{_SCORER}.max_batch_tokens",)
    ),
    "reward_model.micro_batch_size_per_gpu": Honoured(
        "Most sequences of one forward pass of the reward model.", targets=(f"{_SCORER}.max_batch_rows",)
    ),
    "reward.reward_model.enable": Honoured("Newer name of reward_model.enable.", targets=("reward_model.enable",)),
    "reward.reward_model.model_path": Honoured("Newer name of reward_model.model.path.", targets=(f"{_SCORER}.path",)),
    "reward_model.reward_manager": Honoured(
        "naive, batch (functions that take lists), or dapo with its overlong penalty."
    ),
    **{f"reward_model.reward_kwargs.{name}": Honoured(effect) for name, effect in _REWARD_KWARGS.items()},
    "reward.reward_manager.name": Honoured(
        "Newer name of reward_model.reward_manager.", targets=("reward_model.reward_manager",)
    ),
    **{
        f"reward.reward_kwargs.{name}": Honoured(
            f"Newer name of reward_model.reward_kwargs.{name}.", targets=(f"reward_model.reward_kwargs.{name}",)
        )
        for name in _REWARD_KWARGS
    },
    "reward.num_workers": Honoured("Worker processes of the reward service.", targets=("argosy.reward.worker_count",)),
    "reward_model.num_workers": Honoured("Older name of reward.num_workers.", targets=("argosy.reward.worker_count",)),
    # trainer
    "trainer.project_name": Honoured("Names in loggers and the run folder."),
    "trainer.experiment_name": Honoured("Names in loggers and the run folder."),
    "trainer.default_local_dir": Honoured("The run folder."),
    "trainer.default_hdfs_dir": Honoured("Where checkpoints are copied to."),
    "trainer.total_epochs": Honoured("The run's length in data epochs."),
    "trainer.total_training_steps": Honoured("The run's length in steps."),
    "trainer.nnodes": Honoured("Machines of the trainer: 1; more is refused."),
    "trainer.n_gpus_per_node": Honoured("Ranks of the trainer; the result stays."),
    "trainer.critic_warmup": Honoured("How many steps train only the critic."),
    "trainer.logger": Honoured("Where metrics go."),
    "trainer.save_freq": Honoured("How often a checkpoint is written."),
    "trainer.test_freq": Honoured("How often it validates."),
    "trainer.val_before_train": Honoured("Whether it validates before the first step."),
    "trainer.val_only": Honoured("Whether it only validates."),
    "trainer.log_val_generations": Honoured("How many validation answers are kept in the run folder."),
    "trainer.rollout_data_dir": Honoured("Where each step's samples are written."),
    "trainer.validation_data_dir": Honoured("Where validation answers are written."),
    "trainer.resume_mode": Honoured("Whether, and from what, the run goes on."),
    "trainer.resume_from_path": Honoured("The checkpoint it goes on from."),
    "trainer.max_actor_ckpt_to_keep": Honoured("How many checkpoints stay."),
    "trainer.device": Honoured(
        "The device of trainer, critic, rollout and reference.",
        targets=("argosy.trainer.device", "argosy.critic.device", "argosy.rollout.device", "argosy.reference.device"),
    ),
}
