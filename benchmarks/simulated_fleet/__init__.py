"""A fleet without machines: roles that take their time on a virtual clock, for the real controller to work with.

clock.py      an event loop that jumps over the time in which nothing happens
workload.py   how long answers are and how long work takes: published figures
server.py     a rollout server
trainer.py    a trainer, and who scores
profile.py    what the controller itself costs: processor time by place, pauses of the event loop
run.py        one run of the controller over such a fleet
"""
