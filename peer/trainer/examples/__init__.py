"""Rows with a label, for classification: text or a picture, and its class.

The files, each built on those above it:

    label_rules.py    what a run says about such rows: fields, names of classes, lengths
    labelled_rows.py  rows of JSON lines, Parquet and data sets of the hub, each with the number of its class
    pictures.py       a stored picture as pixels of one size
"""
