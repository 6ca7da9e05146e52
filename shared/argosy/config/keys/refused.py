"""verl's keys that the result depends on and that aren't there.

Refused, unless the value asks for what is done anyway.
"""

from __future__ import annotations

from argosy.config.keys.entry import Refused

_MODEL, _ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))

_NO_PIPELINE = "the megatron backend cuts layers (tensor_model_parallel_size), not the stack of them"
_NO_CONTEXT = "the megatron backend has no context parallel; strategy=fsdp2 has ulysses_sequence_parallel_size"
_NO_EXPERTS = "mixture-of-experts models are not there"
_NO_MEGATRON_OFFLOAD = "the megatron backend keeps its state where it computes; strategy=fsdp2 can put it away"
_LORA = "set model.lora_rank, lora_alpha, target_modules and exclude_modules"
_IMAGES = "models here read text only; leave it out"
_ALGORITHM = "arrives with the algorithm families; leave it out"
_TOOLS = "set actor_rollout_ref.rollout.multi_turn.tool_config_path"
_LENGTHS = "one length has one key"
_REWARD_MODEL = "is no setting of reward models here, which are argosy.reward.model.* (docs/rewards-models.md)"
_REWARD_SERVER = (
    "a reward model's server is started apart; set argosy.reward.model.endpoint.url (docs/rewards-models.md)"
)
_ONE_PROCESS = "a reward model is one process; a larger one goes behind argosy.reward.model.endpoint.url"
_OLD = "verl has dropped this key"
_SANDBOX = "code runs in the reward service's own sandbox; its settings are argosy.reward.sandbox.* (docs/sandbox.md)"

REFUSED: dict[str, Refused] = {
    # data
    "data.image_key": Refused(_IMAGES),
    "data.video_key": Refused(_IMAGES),
    "data.audio_key": Refused(_IMAGES),
    "data.tokenizer": Refused(f"set {_MODEL}.tokenizer_path", neutral=(None,)),
    "data.custom_cls.*": Refused("custom dataset classes are not there yet; write the rows to a file", neutral=(None,)),
    "data.sampler.*": Refused("custom samplers are not there yet", neutral=(None,)),
    "data.datagen.*": Refused("data generation during the run is not there yet", neutral=(None,)),
    "data.tool_config_path": Refused(_TOOLS, neutral=(None,)),
    "data.max_length": Refused(f"{_OLD}; set data.max_prompt_length and data.max_response_length"),
    "data.batch_size": Refused(f"{_OLD}; set data.train_batch_size"),
    # model
    f"{_MODEL}.target_parameters": Refused("only layers get adapters; set target_modules", neutral=(None,)),
    f"{_MODEL}.lora.merge": Refused(
        "engines merge an adapter into their weights; argosy.weight_sync.adapter_only says whether it goes alone",
        neutral=(True,),
    ),
    f"{_MODEL}.lora.*": Refused(_LORA),
    f"{_MODEL}.external_lib": Refused("importing other modules at the start is not there yet", neutral=(None,)),
    f"{_MODEL}.hf_config_path": Refused(
        "the config is read from the model's folder; see override_config", neutral=(None,)
    ),
    f"{_MODEL}.mtp.*": Refused("multi-token prediction is not there yet"),
    # actor
    f"{_ACTOR}.ppo_micro_batch_size": Refused(f"{_OLD}; set {_ACTOR}.ppo_micro_batch_size_per_gpu", neutral=(None,)),
    f"{_ACTOR}.megatron.pipeline_model_parallel_size": Refused(_NO_PIPELINE, neutral=(1, None)),
    f"{_ACTOR}.megatron.virtual_pipeline_model_parallel_size": Refused(_NO_PIPELINE, neutral=(None,)),
    f"{_ACTOR}.megatron.context_parallel_size": Refused(_NO_CONTEXT, neutral=(1, None)),
    f"{_ACTOR}.megatron.expert_model_parallel_size": Refused(_NO_EXPERTS, neutral=(1, None)),
    f"{_ACTOR}.megatron.expert_tensor_parallel_size": Refused(_NO_EXPERTS, neutral=(1, None)),
    f"{_ACTOR}.megatron.param_offload": Refused(_NO_MEGATRON_OFFLOAD, neutral=(False,)),
    f"{_ACTOR}.megatron.grad_offload": Refused(_NO_MEGATRON_OFFLOAD, neutral=(False,)),
    f"{_ACTOR}.megatron.optimizer_offload": Refused(_NO_MEGATRON_OFFLOAD, neutral=(False,)),
    f"{_ACTOR}.megatron.use_mbridge": Refused(
        "weights are always converted here, to and from Hugging Face names", neutral=(True, False)
    ),
    f"{_ACTOR}.megatron.sequence_parallel": Refused("Megatron's sequence parallel is not there", neutral=(False,)),
    f"{_ACTOR}.megatron.*": Refused(
        "is no setting of the megatron backend, which reads tensor_model_parallel_size", neutral=(None,)
    ),
    f"{_ACTOR}.use_rollout_log_probs": Refused("old log-probs are always the trainer's own for now", neutral=(False,)),
    f"{_ACTOR}.router_replay.*": Refused("router replay for mixture-of-experts models is not there yet"),
    f"{_ACTOR}.policy_loss.rollout_correction.*": Refused("set algorithm.rollout_correction.*"),
    f"{_ACTOR}.freeze_vision_tower": Refused(_IMAGES, neutral=(False,)),
    f"{_ACTOR}.entropy_coef": Refused(f"the key is {_ACTOR}.entropy_coeff, with two f"),
    f"{_ACTOR}.lr": Refused(f"set {_ACTOR}.optim.lr"),
    f"{_ACTOR}.fsdp_config.mixed_precision": Refused(f"set {_ACTOR}.fsdp_config.dtype", neutral=(None,)),
    f"{_ACTOR}.fsdp_config.mixed_precision.*": Refused(f"set {_ACTOR}.fsdp_config.dtype"),
    # rollout
    f"{_ROLLOUT}.prompt_length": Refused(f"{_LENGTHS}: set data.max_prompt_length"),
    f"{_ROLLOUT}.response_length": Refused(f"{_LENGTHS}: set data.max_response_length"),
    f"{_ROLLOUT}.micro_batch_size": Refused(f"{_OLD}; the engine batches continuously, see argosy.rollout.slot_count"),
    f"{_ROLLOUT}.log_prob_micro_batch_size": Refused(
        f"{_OLD}; set {_ROLLOUT}.log_prob_micro_batch_size_per_gpu", neutral=(None,)
    ),
    f"{_ROLLOUT}.use_fire_sampling": Refused("FIRE sampling is not there", neutral=(False,)),
    f"{_ROLLOUT}.over_sample_rate": Refused("every sample of a step is used", neutral=(0,)),
    f"{_ROLLOUT}.multi_turn.use_inference_chat_template": Refused(
        "turns are always kept as they were sampled, which is what verl does with false", neutral=(False,)
    ),
    f"{_ROLLOUT}.multi_turn.max_turns": Refused(f"{_OLD}; set multi_turn.max_assistant_turns", neutral=(None,)),
    f"{_ROLLOUT}.multi_turn.completion_callback": Refused(f"{_OLD}; set agent.agent_loop_config_path", neutral=(None,)),
    f"{_ROLLOUT}.multi_turn.num_repeat_rollouts": Refused("repeated rollouts are not there", neutral=(None,)),
    f"{_ROLLOUT}.multi_turn.*": Refused("agent loops have no such setting here", neutral=(None,)),
    f"{_ROLLOUT}.agent.custom_async_server.*": Refused(
        "a server of one's own is an engine or an OpenAI endpoint here", neutral=(None,)
    ),
    f"{_ROLLOUT}.limit_images": Refused(_IMAGES, neutral=(None,)),
    f"{_ROLLOUT}.quantization": Refused("quantised rollout is not there", neutral=(None,)),
    f"{_ROLLOUT}.quantization_config_file": Refused("quantised rollout is not there", neutral=(None,)),
    f"{_ROLLOUT}.enable_rollout_routing_replay": Refused("router replay is not there yet", neutral=(False,)),
    f"{_ROLLOUT}.nnodes": Refused("rollout is one process until the elastic fleet arrives", neutral=(0, 1)),
    f"{_ROLLOUT}.skip_rollout": Refused("replaying old rollouts is not there", neutral=(False,)),
    f"{_ROLLOUT}.skip.*": Refused("replaying old rollouts is not there", neutral=(False,)),
    f"{_ROLLOUT}.mtp.*": Refused("multi-token prediction is not there yet"),
    f"{_ROLLOUT}.seed": Refused("set argosy.seed: sampling noise is keyed by it and the sample's id"),
    f"{_ROLLOUT}.stop": Refused("set argosy.rollout.stop"),
    f"{_ROLLOUT}.min_p": Refused("set argosy.rollout.min_p"),
    # ref
    f"{_REF}.megatron.*": Refused("the reference is one process; leave it out"),
    f"{_REF}.ulysses_sequence_parallel_size": Refused("the reference is one process", neutral=(1,)),
    f"{_REF}.log_prob_micro_batch_size": Refused(
        f"{_OLD}; set {_REF}.log_prob_micro_batch_size_per_gpu", neutral=(None,)
    ),
    f"{_REF}.model": Refused("the reference is the start model", neutral=(None,)),
    f"{_REF}.model.*": Refused("the reference is the start model; another one is not there yet"),
    f"{_REF}.fsdp_config.fsdp_size": Refused("the reference is one process", neutral=(-1, 1)),
    # critic
    "critic.strategy": Refused("the critic's backend is the trainer's own", neutral=("fsdp", "fsdp2")),
    "critic.ppo_micro_batch_size": Refused(f"{_OLD}; set critic.ppo_micro_batch_size_per_gpu", neutral=(None,)),
    "critic.forward_micro_batch_size": Refused(f"{_OLD}; set critic.forward_micro_batch_size_per_gpu", neutral=(None,)),
    "critic.rollout_n": Refused("set actor_rollout_ref.rollout.n", neutral=(None,)),
    "critic.megatron.*": Refused("a critic trains with FSDP2 beside a megatron policy; leave it out"),
    "critic.model.lora_rank": Refused("a critic trains all its weights; leave it out", neutral=(0, None)),
    "critic.model.external_lib": Refused("importing other modules at the start is not there yet", neutral=(None,)),
    "critic.fsdp_config.mixed_precision": Refused("set critic.fsdp_config.dtype", neutral=(None,)),
    "critic.fsdp_config.mixed_precision.*": Refused("set critic.fsdp_config.dtype"),
    # algorithm
    "algorithm.use_pf_ppo": Refused(_ALGORITHM, neutral=(False,)),
    "algorithm.pf_ppo.*": Refused(_ALGORITHM),
    "algorithm.filter_groups.max_inflight_gen_batches": Refused(
        "a generation batch is in flight whole before the next one is drawn", neutral=(1,)
    ),
    "algorithm.rollout_correction.rollout_rs_threshold_lower": Refused(
        f"{_OLD}; give a band: algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0", neutral=(None,)
    ),
    "algorithm.rollout_correction.rollout_token_veto_threshold": Refused(
        f"{_OLD}; reject sequences by algorithm.rollout_correction.rollout_rs=seq_max_k2", neutral=(None,)
    ),
    "algorithm.rollout_correction.*": Refused("rollout correction has no such setting here", neutral=(None, False)),
    "algorithm.rollout_is": Refused(
        f"{_OLD}; set algorithm.rollout_correction.rollout_is=token or sequence", neutral=(False, None)
    ),
    "algorithm.rollout_is_threshold": Refused(
        f"{_OLD}; set algorithm.rollout_correction.rollout_is_threshold", neutral=(None,)
    ),
    "algorithm.kl_ctrl.coef": Refused("the key is algorithm.kl_ctrl.kl_coef"),
    # reward
    "reward_model.enable_resource_pool": Refused(_ONE_PROCESS, neutral=(False,)),
    "reward_model.n_gpus_per_node": Refused(_ONE_PROCESS, neutral=(0, 1)),
    "reward_model.nnodes": Refused(_ONE_PROCESS, neutral=(0, 1)),
    "reward_model.strategy": Refused(_ONE_PROCESS, neutral=("fsdp", "fsdp2", None)),
    "reward_model.ulysses_sequence_parallel_size": Refused(_ONE_PROCESS, neutral=(1,)),
    "reward_model.micro_batch_size": Refused(f"{_OLD}; set reward_model.micro_batch_size_per_gpu", neutral=(None,)),
    "reward_model.megatron.*": Refused(_ONE_PROCESS, neutral=(None,)),
    "reward_model.load_weight": Refused("a reward model's weights are always loaded", neutral=(True,)),
    "reward_model.model.external_lib": Refused(
        "importing other modules at the start is not there yet", neutral=(None,)
    ),
    "reward_model.model.fsdp_config.*": Refused(_ONE_PROCESS, neutral=(None, False, -1)),
    "reward_model.model.*": Refused(_REWARD_MODEL, neutral=(None,)),
    "reward_model.rollout.*": Refused(_REWARD_SERVER),
    "reward_model.style": Refused("set reward_model.enable=true for a reward model", neutral=("rule",)),
    "reward_model.reward_kwargs.*": Refused("no reward manager here has such an argument", neutral=(None,)),
    "reward_model.overlong_buffer.*": Refused(
        "the keys are reward_model.reward_kwargs.overlong_buffer_cfg.* and reward_model.reward_kwargs.max_resp_len",
        neutral=(False,),
    ),
    "reward_model.reward_loop_source": Refused("reward managers of one's own are not there yet", neutral=("register",)),
    "reward_model.reward_loop_module_path": Refused("reward managers of one's own are not there yet", neutral=(None,)),
    "reward_model.reward_loop_class_name": Refused("reward managers of one's own are not there yet", neutral=(None,)),
    "reward_model.sandbox_fusion.*": Refused(_SANDBOX, neutral=(None,)),
    "reward_model.*": Refused(_REWARD_MODEL),
    "reward.reward_manager.source": Refused("reward managers of one's own are not there yet", neutral=("register",)),
    "reward.reward_manager.*": Refused("reward managers of one's own are not there yet", neutral=(None,)),
    "reward.reward_kwargs.*": Refused("no reward manager here has such an argument", neutral=(None,)),
    "reward.reward_model.enable_resource_pool": Refused(_ONE_PROCESS, neutral=(False,)),
    "reward.reward_model.n_gpus_per_node": Refused(_ONE_PROCESS, neutral=(0, 1)),
    "reward.reward_model.nnodes": Refused(_ONE_PROCESS, neutral=(0, 1)),
    "reward.reward_model.rollout.*": Refused(_REWARD_SERVER),
    "reward.reward_model.*": Refused(_REWARD_MODEL, neutral=(None,)),
    "reward.sandbox_fusion.*": Refused(_SANDBOX, neutral=(None,)),
    "reward.*": Refused(_REWARD_MODEL),
    # trainer
    "trainer.remove_previous_ckpt_in_save": Refused(f"{_OLD}; set trainer.max_actor_ckpt_to_keep=1", neutral=(False,)),
    "trainer.del_local_ckpt_after_load": Refused("a checkpoint is never deleted by loading it", neutral=(False,)),
    "trainer.val_generations_to_log_to_wandb": Refused(f"{_OLD}; set trainer.log_val_generations"),
    "trainer.total_steps": Refused("set trainer.total_training_steps"),
    "trainer.rollout_only": Refused("there is no run without updates; see trainer.val_only", neutral=(False,)),
}
