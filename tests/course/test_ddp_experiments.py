"""The graders of the lab that takes DDP apart: mistakes get a diagnosis."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("ddp_experiments")
