"""What the papers share: A4, type, logo, parties, sums, and a foot that counts the pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from django.conf import settings
from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Image, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from billing.invoices.selectors import CreditNoteDocument, InvoiceDocument
from billing.invoices.wording import Wording

Printed = InvoiceDocument | CreditNoteDocument
Part = Any  # reportlab has no types

_FONTS = Path(__file__).parent / "fonts"
INK, GREY, RULE, SHADE = HexColor("#16181d"), HexColor("#5b6270"), HexColor("#c9ced6"), HexColor("#f3f5f8")
_MARGIN = 20 * mm
WIDTH = A4[0] - 2 * _MARGIN
# The frame's own padding, which text would have and tables would not.
_PADDING = 6
_LOGO_WIDTH, _LOGO_HEIGHT = 55 * mm, 18 * mm


def build(printed: Printed, story: list[Part], *, watermark: str = "") -> bytes:
    """The PDF of the parts; the same parts give the same bytes."""
    buffer = BytesIO()
    issuer = printed.issuer[0] if printed.issuer else ""
    template = SimpleDocTemplate(
        buffer,
        pagesize=A4,
        leftMargin=_MARGIN - _PADDING,
        rightMargin=_MARGIN - _PADDING,
        topMargin=18 * mm,
        bottomMargin=22 * mm + 3.6 * mm * len(printed.footer),
        title=f"{printed.title} {printed.number}".strip(),
        author=issuer,
        lang=printed.wording.language,
        invariant=True,
    )
    foot = _Foot(
        "  ·  ".join(part for part in (issuer, printed.title, printed.number) if part), printed.footer, watermark
    )
    template.build(story, canvasmaker=lambda *args, **kwargs: _NumberedCanvas(foot, printed.wording, *args, **kwargs))
    return buffer.getvalue()


@cache
def register_fonts() -> None:
    pdfmetrics.registerFont(TTFont("Invoice", _FONTS / "DejaVuSansCondensed.ttf"))
    pdfmetrics.registerFont(TTFont("Invoice-Bold", _FONTS / "DejaVuSansCondensed-Bold.ttf"))
    pdfmetrics.registerFontFamily(
        "Invoice", normal="Invoice", bold="Invoice-Bold", italic="Invoice", boldItalic="Invoice-Bold"
    )


def _style(size: float, color: Any, *, bold: bool, right: bool) -> ParagraphStyle:
    return ParagraphStyle(
        "",
        fontName="Invoice-Bold" if bold else "Invoice",
        fontSize=size,
        leading=size * 1.4,
        textColor=color,
        alignment=TA_RIGHT if right else 0,
    )


def text(content: str, *, size: float = 9, color: Any = INK, bold: bool = False, right: bool = False) -> Part:
    return Paragraph(escape(content), _style(size, color, bold=bold, right=right))


def label(content: str) -> Part:
    return text(content.upper(), size=6.8, color=GREY, bold=True)


def header(printed: Printed) -> Part:
    """Logo or name and address of the issuer, and what this paper is."""
    logo = _logo()
    issuer: list[Part] = [logo, Spacer(1, 2.5 * mm)] if logo else []
    if printed.issuer:
        issuer.append(text(printed.issuer[0], size=10 if logo else 13, bold=True))
    issuer += [text(line, size=8.5, color=GREY) for line in printed.issuer[1:]]
    if printed.issuer_tax_id:
        issuer.append(text(f"{printed.wording.say('tax_id')} {printed.issuer_tax_id}", size=8.5, color=GREY))
    title = [
        text(printed.title, size=20, bold=True, right=True),
        Spacer(1, 2 * mm),
        text(printed.number, size=10, color=GREY, right=True),
    ]
    return grid([[issuer, title]], (WIDTH * 0.55, WIDTH * 0.45))


def _logo() -> Part | None:
    """The file that INVOICE_LOGO names, fitted into its place."""
    if not settings.INVOICE_LOGO:
        return None
    image = Image(settings.INVOICE_LOGO)
    scale = min(_LOGO_WIDTH / image.imageWidth, _LOGO_HEIGHT / image.imageHeight)
    image.drawWidth, image.drawHeight = image.imageWidth * scale, image.imageHeight * scale
    image.hAlign = "LEFT"
    return image


def parties(printed: Printed, facts: Sequence[tuple[str, str]]) -> Part:
    """Whom it is for, and beside it the facts that have a value."""
    bill_to = [label(printed.wording.say("bill_to")), Spacer(1, 1.5 * mm)]
    bill_to += [text(line, bold=position == 0) for position, line in enumerate(printed.bill_to)]
    bill_to.append(text(printed.email, color=GREY))
    if printed.bill_to_tax_id:
        bill_to.append(text(f"{printed.wording.say('tax_id')} {printed.bill_to_tax_id}"))
    names = 36 * mm
    table = Table(
        [[text(name, size=8.5, color=GREY), text(value, size=8.5)] for name, value in facts if value],
        colWidths=(names, WIDTH * 0.54 - names),
        style=TableStyle(
            [
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("PADDING", (0, 0), (-1, -1), 0),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
            ]
        ),
    )
    return grid([[bill_to, table]], (WIDTH * 0.46, WIDTH * 0.54))


def grid(rows: list[list[Part]], widths: tuple[float, ...]) -> Part:
    style = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 0),
    ]
    return Table(rows, colWidths=widths, style=TableStyle(style))


def listing(head: Sequence[str], rows: list[list[Part]], widths: tuple[float, ...]) -> Part:
    """A table whose head stands on every page; all columns but the first are figures."""
    names = [text(name, size=7.5, color=GREY, bold=True, right=place > 0) for place, name in enumerate(head)]
    return Table(
        [names, *rows],
        colWidths=widths,
        repeatRows=1,
        style=TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, 0), SHADE),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("TOPPADDING", (0, 0), (-1, -1), 4),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
                ("LEFTPADDING", (0, 0), (-1, -1), 4),
                ("RIGHTPADDING", (0, 0), (-1, -1), 4),
                ("LINEBELOW", (0, 0), (-1, -1), 0.5, RULE),
            ]
        ),
    )


def sums(rows: Sequence[tuple[str, str]], total: tuple[str, str]) -> Part:
    cells = [["", text(name, right=True), text(value, right=True)] for name, value in rows]
    cells.append(["", *(text(part, size=11, bold=True, right=True) for part in total)])
    return Table(
        cells,
        colWidths=(WIDTH - 100 * mm, 62 * mm, 38 * mm),
        style=TableStyle(
            [
                ("PADDING", (0, 0), (-1, -1), 3),
                ("RIGHTPADDING", (0, 0), (-1, -1), 4),
                ("LINEABOVE", (1, -1), (-1, -1), 0.8, INK),
                ("TOPPADDING", (0, -1), (-1, -1), 5),
            ]
        ),
    )


class _Foot:
    def __init__(self, line: str, footer: Sequence[str], watermark: str) -> None:
        self.line, self.footer, self.watermark = line, footer, watermark


class _NumberedCanvas(Canvas):  # type: ignore[misc]  # reportlab has no types
    """Keeps each page until the number of pages is known, then prints the foot."""

    def __init__(self, foot: _Foot, wording: Wording, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._foot, self._wording = foot, wording
        self._pages: list[dict[str, Any]] = []

    def showPage(self) -> None:
        self._pages.append(dict(self.__dict__))
        self._startPage()

    def save(self) -> None:
        for number, page in enumerate(self._pages, start=1):
            self.__dict__.update(page)
            self._draw_foot(number, len(self._pages))
            super().showPage()
        super().save()

    def _draw_foot(self, number: int, count: int) -> None:
        top = 15 * mm + 3.6 * mm * len(self._foot.footer)
        self.setStrokeColor(RULE)
        self.setLineWidth(0.5)
        self.line(_MARGIN, top, A4[0] - _MARGIN, top)
        self.setFont("Invoice", 7.5)
        self.setFillColor(GREY)
        self.drawString(_MARGIN, top - 4.5 * mm, self._foot.line)
        page = self._wording.say("page", number=number, count=count)
        self.drawRightString(A4[0] - _MARGIN, top - 4.5 * mm, page)
        for place, line in enumerate(self._foot.footer, start=1):
            self.drawString(_MARGIN, top - 4.5 * mm - 3.6 * mm * place, line)
        if self._foot.watermark:
            self.saveState()
            self.setFillColor(HexColor("#16181d"), alpha=0.07)
            self.setFont("Invoice-Bold", 84)
            self.translate(A4[0] / 2, A4[1] / 2)
            self.rotate(40)
            self.drawCentredString(0, 0, self._foot.watermark)
            self.restoreState()
