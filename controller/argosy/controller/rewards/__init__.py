"""Several reward services as one: which of them score a sample, what is made of their scores, what becomes of failures.

router.py      the Reward role over all services: what stages call
routes.py      data source → services
replicas.py    the servers of one service: least loaded first, retries, joins and leaves
rounds.py      one try of some samples; who gets a call of its own next
alike.py       whether servers can stand in for each other
combine.py     scores of several services → one outcome
figures.py     what is known of the services from the steps before; part of the checkpoint
moments.py     running mean and spread, for normalisation
failures.py    when too many samples can't be judged
statistics.py  metrics per data source and per service
connect.py     from the configuration and membership to a router
"""
