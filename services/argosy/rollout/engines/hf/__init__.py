"""The embedded engine (`rollout.name=hf`): continuous batching over any Hugging Face causal LM, on CPU or GPU.

One step of the engine is: take in what waits, compute the prompts' keys and values (once per distinct prompt), then
decode one token for every running sample. A sample enters decode with the *last* token of its prompt, so that prefill
never samples and a prompt shared by n samples is computed once and copied into their slots. A prompt longer than what
a step may compute comes in pieces, with decode steps in between. How a token is drawn and when a sample ends is in
`engines/sampling`, which other engines share.

    slots.py      the key/value cache: contiguous rows, one per running sample
    prefixes.py   keys and values of prompts, shared by the samples of a group
    attention.py  the attention function that transformers calls
    loading.py    model folder → checked model
    llama.py      Llama as a module of our own, and (llama_loading.py) which checkpoints are read as it: those need no
                  transformers, whose import takes longer than all the rest of a start
    native/       the passes of Llama-like models in compiled code, where it can be (docs/adr/0020)
    runner.py     prefill and decode passes
    selfcheck.py  both of those against the plain model, at start
    scheduler.py  who runs, who waits
    engine.py     the step, and the thread that repeats it
    options.py    settings
    adapter.py    all of it behind the Protocol that every engine has

Dimension letters: B rows of a decode step, N packed prompt tokens, S slots, T cached tokens, L layers, H query heads,
K key/value heads, G = H/K, D head size, V vocabulary.
"""
