"""Questions beside speed, one a file: costs, sizes, capability, graphs, versions, precision, races.

In: the kernels, the compilers, committed runs. Out: tables and rows that pages and reports quote.
"""
