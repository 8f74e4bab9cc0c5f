"""The graders of the lab on FSDP: mistakes get a diagnosis."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("fsdp")
