"""The graders of the lab on ZeRO: mistakes get a diagnosis."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("zero")
