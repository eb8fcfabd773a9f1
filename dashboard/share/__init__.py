"""What visitors take along: pictures for links. Pillow is loaded with the first picture.

The files, each built on those above it:

    page_address.py    the address under which visitors see the page
    card_text.py       what is written on a card
    card_drawing.py    the card as a PNG of 1200 x 630 pixels
"""
