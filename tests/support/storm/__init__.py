"""A storm: a seeded schedule of faults over a real run, with what each recovery took."""
