"""Preview pictures for links. Pillow is loaded with the first picture.

The files, each built on those above it:

    page_address.py    the address under which visitors see the page
    card_text.py       the text of a picture
    card_drawing.py    the picture as a PNG of 1200 x 630 pixels
"""
