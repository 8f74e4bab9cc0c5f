"""The exercise of the lab on several hosts: another right way."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("cluster")
