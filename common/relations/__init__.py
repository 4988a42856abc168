"""What must hold between two results of one kernel, or for a known result, without the reference.

In: a case. Out: transformed batches whose results must agree (`Relation`), and batches whose result is known in closed
form (`Oracle`).
"""
