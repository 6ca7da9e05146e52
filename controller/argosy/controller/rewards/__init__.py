"""Several reward services as one: which of them score a sample, what is made of their scores, what becomes of failures.

router.py      the Reward role over all services: what stages call
routes.py      data source → services
replicas.py    the servers of one service: least loaded first, retries, joins and leaves
combine.py     scores of several services → one outcome
moments.py     running mean and spread, for normalisation; part of the checkpoint
failures.py    when too many samples can't be judged
statistics.py  metrics per data source and per service
connect.py     from the configuration and membership to a router
"""
