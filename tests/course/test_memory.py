"""The graders of the lab on memory: other right ways, and numbers of other types."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("memory")
