"""What is tested where. A room of the library has a folder of its name: `collectives`, `ddp`, ...

test_architecture        lint, format, types, contracts on imports, and the rules of the house
test_wrapping_checks     what DDP, ZeRO and FSDP all refuse: one table of cases
proof                    each wrapper against one process, on many models; ways to attack it; and
                         faulty comms, of which the proof must notice each
claims                   what is often said, shown by a run where no room's own test shows it;
                         `book/claims.yml` names the tests
from_scratch             the lesson's files, as milestones of the project
course, widgets          graders, with wrong answers and what each is told; figures; steppers and
                         sliders
book, scripts            the built pages, the labs, what a reader copies; recipes and scripts
benchmarks               the harness, and records that the book quotes
wrong                    ledgers of wrong answers, a line each: what is changed in the right one
support                  helpers of several folders: models, training, refusals, tables of cases,
                         figures, pages, runs of the capstone, comms that spoil, the rules of `nccl`
mutants                  89 single-line faults of lesson and nuclei, planted one by one, at night or
                         by hand: which test notices? No test itself
"""
