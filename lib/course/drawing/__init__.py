"""Tools for the figures of several chapters, and how to add a figure.

A figure is a function that takes what a run or a simulation produced, and a cell that calls it. If
users of minidist need it too, it belongs in `minidist.plots`; if only one page shows it, in
`chapters/NAME/figures.py`, and `course.figures` lists it. Most are a table of data and one call:
`cells` (who holds what), `lanes` (what runs when, and bars laid end to end; both of
`minidist.plots.cells`) or `curves` of `minidist.plots.curves`; a sketch has ranks and arrows.
Colors, axes and legend come from `minidist.plots.style`: a rank has one color in the whole book
(`RANK`), and so have the parts of the state (`PART`), the phases of a step (`PHASE`) and the
algorithms (`ALGORITHM`). Draw it 3.4 to 3.7 inches wide, with labels of `style.LABEL` or
`style.TITLE`, and up to 5.9 inches tall: on a desk the book enlarges it by 1.4, so that it fits on
a screen and its letters have 13 to 15 pixels; a phone shows it as it is. The cell's metadata give
it a name, a caption that says what to see, and alt text:

    ---
    mystnb:
      figure: {name: fig-NAME, caption: What to see.}
      image: {alt: What is in it.}
    ---

A chapter that discusses a lab's figure shows it too, by a `lab-figure` directive with its name.
"""
