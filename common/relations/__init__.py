"""What must hold between two answers of one kernel, or beside a known answer, without the reference.

In: a case. Out: transformed batches whose answers must agree (`Relation`), and batches with an answer known in closed
form (`Oracle`).
"""
