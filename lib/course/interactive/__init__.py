"""What readers play with in a page: sliders, steppers, questions, an editor.

No server, no network. What sliders compute in a browser is the library's Python: see `compiled`.
Everything else is computed here, or by Python in the browser: see `editor`.
"""
