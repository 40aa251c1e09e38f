"""An invoice on paper: A4, as many pages as its lines need, each with its number."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import KeepTogether, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from billing.invoices.models import Invoice
from billing.invoices.selectors import InvoiceDocument, document

_FONTS = Path(__file__).parent / "fonts"
_INK, _GREY, _RULE, _SHADE = HexColor("#16181d"), HexColor("#646b78"), HexColor("#c9ced6"), HexColor("#f3f5f8")
_MARGIN = 20 * mm
_WIDTH = A4[0] - 2 * _MARGIN
_COLUMNS = (_WIDTH - 86 * mm, 30 * mm, 30 * mm, 26 * mm)
# The frame's own padding, which text would have and tables would not.
_PADDING = 6


def render(invoice: Invoice) -> bytes:
    """The PDF. Drafts and void invoices say so across the page, so that none is mistaken for an invoice."""
    _register_fonts()
    printed = document(invoice)
    buffer = BytesIO()
    template = SimpleDocTemplate(
        buffer,
        pagesize=A4,
        leftMargin=_MARGIN - _PADDING,
        rightMargin=_MARGIN - _PADDING,
        topMargin=18 * mm,
        bottomMargin=22 * mm,
        title=f"{printed.title} {printed.number}",
        author=printed.issuer[0] if printed.issuer else "",
        invariant=True,
    )
    story = [_header(printed), Spacer(1, 9 * mm), _parties(printed), Spacer(1, 9 * mm), _lines(printed)]
    story += [Spacer(1, 5 * mm), KeepTogether([_totals(printed), Spacer(1, 9 * mm), *_notes(printed)])]
    template.build(story, canvasmaker=lambda *args, **kwargs: _NumberedCanvas(printed, *args, **kwargs))
    return buffer.getvalue()


@cache
def _register_fonts() -> None:
    pdfmetrics.registerFont(TTFont("Invoice", _FONTS / "DejaVuSansCondensed.ttf"))
    pdfmetrics.registerFont(TTFont("Invoice-Bold", _FONTS / "DejaVuSansCondensed-Bold.ttf"))
    pdfmetrics.registerFontFamily(
        "Invoice", normal="Invoice", bold="Invoice-Bold", italic="Invoice", boldItalic="Invoice-Bold"
    )


def _style(size: float = 9, *, color: Any = _INK, bold: bool = False, right: bool = False) -> ParagraphStyle:
    return ParagraphStyle(
        "",
        fontName="Invoice-Bold" if bold else "Invoice",
        fontSize=size,
        leading=size * 1.4,
        textColor=color,
        alignment=TA_RIGHT if right else 0,
    )


def _text(text: str, **style: Any) -> Paragraph:
    return Paragraph(escape(text), _style(**style))


def _label(text: str) -> Paragraph:
    return _text(text.upper(), size=6.8, color=_GREY, bold=True)


def _header(printed: InvoiceDocument) -> Table:
    issuer = [_text(printed.issuer[0], size=13, bold=True)] if printed.issuer else []
    issuer += [_text(line, size=8.5, color=_GREY) for line in printed.issuer[1:]]
    title = [
        _text(printed.title, size=20, bold=True, right=True),
        Spacer(1, 2 * mm),
        _text(printed.number, size=10, color=_GREY, right=True),
    ]
    return _grid([[issuer, title]], (_WIDTH * 0.55, _WIDTH * 0.45))


def _parties(printed: InvoiceDocument) -> Table:
    bill_to = [_label("Bill to"), Spacer(1, 1.5 * mm)]
    bill_to += [_text(line, bold=position == 0) for position, line in enumerate(printed.bill_to)]
    bill_to += [_text(printed.email, color=_GREY)]
    if printed.bill_to_tax_id:
        bill_to.append(_text(f"Tax id {printed.bill_to_tax_id}"))
    facts = [
        ("Invoice number", printed.number),
        ("Issued", printed.issued),
        ("Due", printed.due),
        ("Service period", printed.period),
        ("Currency", printed.currency),
        ("Status", printed.status),
    ]
    table = Table(
        [[_text(name, size=8.5, color=_GREY), _text(value, size=8.5)] for name, value in facts if value],
        colWidths=(26 * mm, _WIDTH * 0.52 - 26 * mm),
        style=TableStyle(
            [
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("PADDING", (0, 0), (-1, -1), 0),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
            ]
        ),
    )
    return _grid([[bill_to, table]], (_WIDTH * 0.48, _WIDTH * 0.52))


def _grid(rows: list[list[Any]], widths: tuple[float, ...]) -> Table:
    style = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 0),
    ]
    return Table(rows, colWidths=widths, style=TableStyle(style))


def _lines(printed: InvoiceDocument) -> Table:
    head = [
        _text(name, size=7.5, color=_GREY, bold=True, right=position > 0)
        for position, name in enumerate(("Description", "Tokens", "Price per million", "Amount"))
    ]
    rows = [
        [
            _text(line.description),
            _text(line.tokens, right=True),
            _text(line.unit_price, right=True),
            _text(line.amount, right=True),
        ]
        for line in printed.lines
    ] or [[_text("No usage in this period.", color=_GREY), "", "", ""]]
    return Table(
        [head, *rows],
        colWidths=_COLUMNS,
        repeatRows=1,
        style=TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, 0), _SHADE),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("TOPPADDING", (0, 0), (-1, -1), 4),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
                ("LEFTPADDING", (0, 0), (-1, -1), 4),
                ("RIGHTPADDING", (0, 0), (-1, -1), 4),
                ("LINEBELOW", (0, 0), (-1, -1), 0.5, _RULE),
            ]
        ),
    )


def _totals(printed: InvoiceDocument) -> Table:
    rows = [("Usage", printed.subtotal)]
    if printed.credit:
        rows.append((printed.credit_label, printed.credit))
    if printed.tax:
        rows.append(("Tax", printed.tax))
    cells = [["", _text(name, right=True), _text(value, right=True)] for name, value in rows]
    cells.append(
        ["", _text("Total due", size=11, bold=True, right=True), _text(printed.total, size=11, bold=True, right=True)]
    )
    return Table(
        cells,
        colWidths=(_WIDTH - 86 * mm, 56 * mm, 30 * mm),
        style=TableStyle(
            [
                ("PADDING", (0, 0), (-1, -1), 3),
                ("RIGHTPADDING", (0, 0), (-1, -1), 4),
                ("LINEABOVE", (1, -1), (-1, -1), 0.8, _INK),
                ("TOPPADDING", (0, -1), (-1, -1), 5),
            ]
        ),
    )


def _notes(printed: InvoiceDocument) -> list[Paragraph]:
    exact = (
        f"Exact usage {printed.usage_exact}. Each call is rated to a billionth of the currency; "
        "each line is rounded to the smallest coin, once."
    )
    return [_text(printed.note, size=9.5, bold=True), Spacer(1, 2 * mm), _text(exact, size=8, color=_GREY)]


class _NumberedCanvas(Canvas):  # type: ignore[misc]  # reportlab has no types
    """Keeps each page until the number of pages is known, then prints the foot."""

    def __init__(self, printed: InvoiceDocument, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._printed = printed
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
        self.setStrokeColor(_RULE)
        self.setLineWidth(0.5)
        self.line(_MARGIN, 15 * mm, A4[0] - _MARGIN, 15 * mm)
        self.setFont("Invoice", 7.5)
        self.setFillColor(_GREY)
        issuer = self._printed.issuer[0] if self._printed.issuer else ""
        self.drawString(
            _MARGIN,
            10.5 * mm,
            "  ·  ".join(part for part in (issuer, self._printed.title, self._printed.number) if part),
        )
        self.drawRightString(A4[0] - _MARGIN, 10.5 * mm, f"Page {number} of {count}")
        if self._printed.is_draft or self._printed.status == "Void":
            self.saveState()
            self.setFillColor(HexColor("#16181d"), alpha=0.07)
            self.setFont("Invoice-Bold", 84)
            self.translate(A4[0] / 2, A4[1] / 2)
            self.rotate(40)
            self.drawCentredString(0, 0, "PREVIEW" if self._printed.is_draft else "VOID")
            self.restoreState()
