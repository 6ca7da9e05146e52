"""Record and replay: the rollouts of a run as files, and training from them without rollout servers.

rows.py       a step's prompts, samples and outcomes ↔ the rows of a Parquet file, without loss
store.py      a folder of such files: its index, read and checked
writer.py     written, step by step
recorder.py   writes while the loop goes on
replay.py     gives recorded steps back to the loop
fitting.py    does a record fit the configuration that is to train from it?
rollouts.py   rollouts without a trainer
summary.py    what is in a record, for people
"""
