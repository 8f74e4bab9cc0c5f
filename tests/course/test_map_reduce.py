"""The graders of the chapter on MapReduce: wrong answers."""

from tests.course.verdicts import diagnosed

test_a_wrong_answer_is_diagnosed = diagnosed("map_reduce")
