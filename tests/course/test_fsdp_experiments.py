"""The graders of the lab that takes FSDP apart: mistakes get a diagnosis."""

from tests.course.verdicts import diagnosed

test_a_wrong_answer_is_diagnosed = diagnosed("fsdp_experiments")
