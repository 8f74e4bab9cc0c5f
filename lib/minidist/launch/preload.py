"""Imported last by the server that ranks are forked from: their collectors skip what is loaded.

Otherwise each collection in each rank walks through all of torch's modules, which takes a good part
of a second, and by marking them copies memory that forked processes share: see `gc.freeze` in
Python's documentation.
"""

import gc

gc.collect()
gc.freeze()
