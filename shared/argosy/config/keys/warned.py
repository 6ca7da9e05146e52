"""verl's keys that have nothing to act on here and can't change the result: the run starts and says so."""

from __future__ import annotations

from argosy.config.keys.entry import Warned

_MODEL, _ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout", "ref"))

_RAY = "there is no Ray here"
_OFFLOAD = "the reference keeps its weights where it computes"
_FSDP = "the reference is one process: it has nothing to shard"
_WRAP = "every layer is sharded by itself, and the rest together"
_COMPILE = "the reference is not compiled"
_ENGINE = "the embedded engine has no such setting"
_PROFILER = "traces are always written; see argosy.telemetry"
_CHUNKS = "log-probs and entropy are always computed in chunks; see argosy.trainer.log_prob_chunk_tokens"
_SYNC = "weights reach rollout over the services' own stream"
_STRATEGY = {
    "megatron": "the reference is one process: leave it out",
    "torchtitan": "torchtitan is not there",
    "veomni": "veomni is not there",
    "automodel": "automodel is not there",
}
_RETURNED = "the messages and ids of each row are always kept"

WARNED: dict[str, Warned] = {
    # data
    "data.return_raw_input_ids": Warned(_RETURNED, neutral=(False,)),
    "data.return_raw_chat": Warned(_RETURNED, neutral=(True,)),
    "data.return_full_prompt": Warned(_RETURNED, neutral=(False,)),
    "data.return_multi_modal_inputs": Warned("rows have no images"),
    "data.filter_overlong_prompts_workers": Warned("the filter runs in the controller, in one process"),
    "data.dataloader_num_workers": Warned("rows are read in the controller, in one process"),
    "data.use_shm": Warned("files are read where they are", neutral=(False,)),
    "data.need_tools_kwargs": Warned("there are no tools", neutral=(False,)),
    # model
    f"{_MODEL}.use_remove_padding": Warned("sequences are always packed without padding", neutral=(True,)),
    f"{_MODEL}.use_fused_kernels": Warned(_CHUNKS, neutral=(False,)),
    f"{_MODEL}.fused_kernel_options.*": Warned(_CHUNKS),
    f"{_MODEL}.use_liger": Warned("Liger's kernels are not used", neutral=(False,)),
    f"{_MODEL}.use_shm": Warned("the model is read where it is", neutral=(False,)),
    f"{_MODEL}.tiled_mlp.*": Warned("layers are computed whole", neutral=(False,)),
    # actor
    f"{_ACTOR}.use_fused_kernels": Warned(_CHUNKS, neutral=(False,)),
    f"{_ACTOR}.use_remove_padding": Warned("sequences are always packed without padding", neutral=(True,)),
    f"{_ACTOR}.entropy_from_logits_with_chunking": Warned(_CHUNKS, neutral=(True,)),
    f"{_ACTOR}.entropy_checkpointing": Warned(_CHUNKS),
    f"{_ACTOR}.checkpoint.save_contents": Warned("a checkpoint always holds model, optimizer, schedule and RNG"),
    f"{_ACTOR}.checkpoint.load_contents": Warned("a checkpoint is always loaded whole"),
    f"{_ACTOR}.checkpoint.async_save": Warned(
        "checkpoints are written while training goes on; argosy.trainer.background_save=false waits", neutral=(True,)
    ),
    f"{_ACTOR}.checkpoint.strict": Warned("a checkpoint is always loaded whole", neutral=(True,)),
    f"{_ACTOR}.checkpoint.mbridge_config.*": Warned("there is no Megatron"),
    f"{_ACTOR}.profiler.*": Warned(_PROFILER, neutral=(False, None)),
    f"{_ACTOR}.fsdp_config.grad_offload": Warned("gradients go with the parameters, see param_offload"),
    f"{_ACTOR}.fsdp_config.seed": Warned("seeds are argosy.seed"),
    f"{_ACTOR}.fsdp_config.full_determinism": Warned("see argosy.deterministic", neutral=(False,)),
    f"{_ACTOR}.fsdp_config.entropy_from_logits_with_chunking": Warned(_CHUNKS, neutral=(True,)),
    f"{_ACTOR}.fsdp_config.wrap_policy.*": Warned(_WRAP),
    f"{_ACTOR}.fsdp_config.use_orig_params": Warned("FSDP2 has no such choice", neutral=(False,)),
    f"{_ACTOR}.fsdp_config.forward_only": Warned("the actor is always trained, the reference never", neutral=(False,)),
    f"{_ACTOR}.fsdp_config.entropy_checkpointing": Warned(_CHUNKS),
    # rollout
    f"{_ROLLOUT}.mode": Warned("every rollout is an asynchronous service", neutral=("async",)),
    f"{_ROLLOUT}.data_parallel_size": Warned("the embedded engine is one process", neutral=(1,)),
    f"{_ROLLOUT}.expert_parallel_size": Warned("the embedded engine is one process", neutral=(1,)),
    f"{_ROLLOUT}.pipeline_model_parallel_size": Warned("the embedded engine is one process", neutral=(1,)),
    f"{_ROLLOUT}.n_gpus_per_node": Warned("the embedded engine is one process", neutral=(1,)),
    f"{_ROLLOUT}.cudagraph_capture_sizes": Warned("the embedded engine never captures graphs", neutral=(None,)),
    f"{_ROLLOUT}.free_cache_engine": Warned(
        "rollout sleeps during updates where argosy.colocated=true", neutral=(False,)
    ),
    f"{_ROLLOUT}.load_format": Warned("rollout loads the model's folder, then takes the trainer's weights"),
    f"{_ROLLOUT}.layered_summon": Warned(_SYNC, neutral=(False,)),
    f"{_ROLLOUT}.layer_name_map.*": Warned(_SYNC),
    f"{_ROLLOUT}.update_weights_bucket_megabytes": Warned(_SYNC),
    f"{_ROLLOUT}.checkpoint_engine.*": Warned(_SYNC),
    f"{_ROLLOUT}.multi_stage_wake_up": Warned(_ENGINE, neutral=(False,)),
    f"{_ROLLOUT}.disable_log_stats": Warned("the engine's state is in traces and status", neutral=(True,)),
    f"{_ROLLOUT}.calculate_log_probs": Warned("log-probs of the sampled tokens are always returned", neutral=(True,)),
    f"{_ROLLOUT}.logprobs_mode": Warned(
        "log-probs are always those of the distribution sampled from", neutral=("processed_logprobs",)
    ),
    f"{_ROLLOUT}.skip_tokenizer_init": Warned("tokens go in and out", neutral=(True,)),
    f"{_ROLLOUT}.agent.num_workers": Warned("the controller sends every prompt itself"),
    f"{_ROLLOUT}.trace.*": Warned(_PROFILER, neutral=(None, False)),
    f"{_ROLLOUT}.profiler.*": Warned(_PROFILER, neutral=(None, False)),
    f"{_ROLLOUT}.prometheus.*": Warned("there is no Prometheus endpoint", neutral=(None, False)),
    f"{_ROLLOUT}.enable_sleep_mode": Warned("engines can sleep; argosy.colocated=true lets them", neutral=(True,)),
    f"{_ROLLOUT}.scheduling_policy": Warned("requests are admitted in the order they come", neutral=("fcfs",)),
    # ref
    f"{_REF}.strategy": Warned(_FSDP, refused_values=_STRATEGY),
    f"{_REF}.use_torch_compile": Warned(_COMPILE, neutral=(False,)),
    f"{_REF}.entropy_from_logits_with_chunking": Warned(_CHUNKS, neutral=(True,)),
    f"{_REF}.entropy_checkpointing": Warned(_CHUNKS),
    f"{_REF}.profiler.*": Warned(_PROFILER, neutral=(False, None)),
    f"{_REF}.fsdp_config.param_offload": Warned(_OFFLOAD, neutral=(False,)),
    f"{_REF}.fsdp_config.optimizer_offload": Warned("the reference has no optimizer", neutral=(False,)),
    f"{_REF}.fsdp_config.model_dtype": Warned("see argosy.reference.dtype"),
    f"{_REF}.fsdp_config.dtype": Warned("see argosy.reference.dtype"),
    f"{_REF}.fsdp_config.offload_policy": Warned(_OFFLOAD, neutral=(False,)),
    f"{_REF}.fsdp_config.wrap_policy.*": Warned(_FSDP),
    f"{_REF}.fsdp_config.reshard_after_forward": Warned(_FSDP),
    f"{_REF}.fsdp_config.forward_prefetch": Warned(_FSDP, neutral=(False,)),
    f"{_REF}.fsdp_config.use_orig_params": Warned(_FSDP, neutral=(False,)),
    f"{_REF}.fsdp_config.forward_only": Warned("the reference is never trained", neutral=(True,)),
    f"{_REF}.fsdp_config.use_torch_compile": Warned(_COMPILE, neutral=(False,)),
    f"{_REF}.fsdp_config.strategy": Warned(_FSDP, refused_values=_STRATEGY),
    # the rest
    "actor_rollout_ref.hybrid_engine": Warned(
        "services are placed by argosy.placement and argosy.colocated", neutral=(True,)
    ),
    "actor_rollout_ref.nccl_timeout": Warned("there is no collective; calls have argosy.rpc.deadline_s"),
    "actor_rollout_ref.profiler.*": Warned(_PROFILER),
    "reward_model.launch_reward_fn_async": Warned("rewards are always scored beside other work", neutral=(True,)),
    "reward_model.profiler.*": Warned(_PROFILER),
    "reward_model.use_dynamic_bsz": Warned(
        "sequences of like length always share a pass, up to forward_max_token_len_per_gpu tokens", neutral=(True, None)
    ),
    "reward_model.model.use_shm": Warned("weights are read from their folder", neutral=(False,)),
    "reward_model.model.use_remove_padding": Warned("padding is bounded by argosy.reward.model.min_fill"),
    "reward_model.model.use_fused_kernels": Warned("a reward model has no kernels of its own", neutral=(False,)),
    "trainer.balance_batch": Warned("rows are always divided over the ranks by their cost", neutral=(True,)),
    "trainer.max_critic_ckpt_to_keep": Warned(
        "a checkpoint holds policy and critic; trainer.max_actor_ckpt_to_keep says how many stay", neutral=(None,)
    ),
    "critic.nccl_timeout": Warned("there is no collective; calls have argosy.rpc.deadline_s"),
    "critic.model.use_remove_padding": Warned("sequences are always packed without padding", neutral=(True,)),
    "critic.fsdp_config.use_torch_compile": Warned("it is compiled where the actor is"),
    "critic.model.use_shm": Warned("the model is read where it is", neutral=(False,)),
    "trainer.ray_wait_register_center_timeout": Warned(_RAY),
    "trainer.esi_redundant_time": Warned("no instance that expires is known of", neutral=(0,)),
    "trainer.use_legacy_worker_impl": Warned("there are no verl workers"),
    "trainer.profile_steps": Warned(_PROFILER, neutral=(None,)),
    "trainer.controller_nsight_options.*": Warned(_PROFILER),
    "trainer.worker_nsight_options.*": Warned(_PROFILER),
    "trainer.npu_profile.*": Warned(_PROFILER),
    "global_profiler.*": Warned(_PROFILER),
    "ray_init.*": Warned(_RAY),
    "ray_kwargs.*": Warned(_RAY),
    "transfer_queue.*": Warned("the controller holds each step's batch itself", neutral=(False,)),
    "hydra.*": Warned("the run folder, its log and its resolved configuration are trainer.default_local_dir's"),
}

_SHARED_WITH_THE_CRITIC = tuple(f"{_ACTOR}.{section}." for section in ("fsdp_config", "checkpoint", "profiler"))
WARNED |= {
    f"critic.{key.removeprefix(f'{_ACTOR}.')}": entry
    for key, entry in WARNED.items()
    if key.startswith(_SHARED_WITH_THE_CRITIC)
}
