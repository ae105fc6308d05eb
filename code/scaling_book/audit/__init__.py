"""The evidence itself on trial: does it notice a fault, and does it cry wolf?

`run_mutants` puts one fault after the other into a copy of the code, and `false_alarms` measures
all evidence again with other random numbers. Both write a record into ``data/``; a page reads it
with `mutants.read_record` and `false_alarms.read_record`.

`implementations` tries named attention functions with the library's `check_attention`, right ones
and wrong ones, and records the verdicts.
"""
