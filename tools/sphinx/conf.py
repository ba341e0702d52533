# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the site that tools/site builds. prepare.py writes the sources."""

import logging
import os

project = "Feedlane"
copyright = "the Feedlane authors"
version = release = os.environ["FEEDLANE_VERSION"]
html_title = f"Feedlane {version}"

extensions = ["myst_parser", "breathe"]
exclude_patterns = []

# Anchors as the documents use them: those of a heading's words, in small letters.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
# Indented blocks are commands and layouts.
highlight_language = "none"

breathe_projects = {"feedlane": os.environ["FEEDLANE_XML"]}
breathe_default_project = "feedlane"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
c_id_attributes = cpp_id_attributes = ["FEEDLANE_API"]



# A namespace is declared once per header; anything else that is declared twice is an error.
def is_no_namespace(record):
    return not record.getMessage().endswith(("cpp:type:: feedlane'.", "cpp:type:: v1'."))


logging.getLogger("sphinx.sphinx.domains.cpp").addFilter(is_no_namespace)

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
