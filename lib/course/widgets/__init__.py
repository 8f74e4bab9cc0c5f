"""Things to play with in the book: pictures with sliders, and steppers. No server, no network.

`static/formulas.js` holds all that a browser computes; everything else is computed here.
"""

from course.widgets.cost import curves_slider
from course.widgets.memory import state_slider
from course.widgets.overlap import overlap_slider

__all__ = ["curves_slider", "overlap_slider", "state_slider"]
