"""The graders of the chapter on MapReduce: wrong answers."""

from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("map_reduce")
