"""Widgets for readers to play with: sliders, steppers, questions, an editor.

No server, no network. What sliders compute in a browser is the library's Python: see `compiled`.
Everything else is computed here, or by Python in the browser: see `editor`. What only sliders ask
stands in `in_page`; scripts only draw. Steppers go through frames that Python has recorded or
simulated. Lanes over time are drawn by `timeline` for pages without scripts, and by `lanes` of
`static/sliders.js`; a test compares the two. What only one chapter shows is in its `widgets.py`.

What readers do stays in their browser: `static/kept.js` reads and writes it for all other scripts.
Pages load what `_config.yml` lists; what few readers need is a file of its own, which the function
`load` of `kept.js` brings.
"""
