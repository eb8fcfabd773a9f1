"""The one way to what a manifest names outside of itself: what it may be, who fetches it, with which limits. No torch.

The files, each built on those above it:

    outside_names.py  the table: every field of a manifest that could name a place, and the rules for it
    web_request.py    requests by HTTP that carry no credentials, go nowhere unasked and end in time
    hub_files.py      files of one repository of the Hugging Face hub at one commit
"""
