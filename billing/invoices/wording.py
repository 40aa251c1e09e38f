"""What papers say, in each language, and how it writes dates and money."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils import translation
from django.utils.formats import date_format

from billing.money import MINOR_DIGITS, NANO, SYMBOLS


@dataclass(frozen=True)
class _Notation:
    day: str  # in Django's date format
    thousands: str
    decimal: str
    # {sign}, {symbol}, {number}
    money: str
    after_day: str = ""


_NARROW, _FIXED = "\u202f", "\u00a0"
_NOTATIONS = {
    "en": _Notation("j F Y", ",", ".", "{sign}{symbol}{number}"),
    "de": _Notation("j. F Y", ".", ",", f"{{sign}}{{number}}{_FIXED}{{symbol}}", after_day="."),
    "fr": _Notation("j F Y", _NARROW, ",", f"{{sign}}{{number}}{_FIXED}{{symbol}}"),
    "es": _Notation(r"j \d\e F \d\e Y", ".", ",", f"{{sign}}{{number}}{_FIXED}{{symbol}}"),
    "nl": _Notation("j F Y", ".", ",", f"{{symbol}}{_FIXED}{{sign}}{{number}}"),
}

_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "invoice": "Invoice",
        "preview": "Invoice preview",
        "credit_note": "Credit note",
        "number": "Invoice number",
        "note_number": "Credit note number",
        "for_invoice": "For invoice",
        "issued": "Issued",
        "due": "Due",
        "period": "Service period",
        "currency": "Currency",
        "status": "Status",
        "bill_to": "Bill to",
        "tax_id": "Tax ID",
        "description": "Description",
        "quantity": "Quantity",
        "unit_price": "Unit price",
        "amount": "Amount",
        "tokens_per_million": "per million",
        "no_usage": "No usage in this period.",
        "usage": "Subtotal",
        "credit": "Prepaid credit applied",
        "credited": "Credited to your balance",
        "tax": "Tax",
        "net": "Net amount",
        "total": "Total due",
        "note_total": "Total credited",
        "page": "Page {number} of {count}",
        "state_draft": "Draft",
        "state_final": "Due",
        "state_sent": "Due",
        "state_past_due": "Past due",
        "state_paid": "Paid",
        "state_void": "Void",
        "state_uncollectible": "Written off",
        "state_nothing": "Nothing due",
        "watermark_draft": "PREVIEW",
        "watermark_void": "VOID",
        "input": "input tokens",
        "cached_input": "cached input tokens",
        "cache_write": "tokens written to the cache",
        "output": "output tokens",
        "reasoning": "reasoning tokens",
        "minimum": "minimum per request",
        "late_usage": "of earlier months",
        "adjustment": "correction",
        "price_from": "price from {day}",
        "share": "{days} of {of} days",
        "exact": "Exact usage {amount}. Each call is rated to a billionth of the currency; each line is rounded to the "
        "smallest coin, once.",
        "reverse": "Reverse charge: the recipient accounts for the tax (Article 196 of Directive 2006/112/EC).",
        "exempt": "Exempt from tax: {reason}.",
        "to": "{first} to {last}",
        "is_preview": "This is a preview of the usage known so far. It is not an invoice and nothing is due.",
        "is_void": "This invoice was voided on {day}. Nothing is due.",
        "is_paid": "Paid on {day}. Thank you.",
        "is_covered": "The usage of this period was covered by prepaid credit. Nothing is due.",
        "is_written_off": "This invoice was written off on {day}; it can still be paid.",
        "is_due": "Please pay {amount} by {day}.",
        "is_past_due": "{amount} was due on {day}. Please pay it now.",
        "is_credited": "{amount} of it was credited.",
        "note_reduces": "This amount is taken off invoice {number}.",
        "note_refunds": "This amount of invoice {number} is paid back.",
        "reason": "Reason",
    },
    "de": {
        "invoice": "Rechnung",
        "preview": "Rechnungsvorschau",
        "credit_note": "Gutschrift",
        "number": "Rechnungsnummer",
        "note_number": "Gutschriftsnummer",
        "for_invoice": "Zu Rechnung",
        "issued": "Ausgestellt am",
        "due": "Fällig am",
        "period": "Leistungszeitraum",
        "currency": "Währung",
        "status": "Status",
        "bill_to": "Rechnung an",
        "tax_id": "USt-IdNr.",
        "description": "Beschreibung",
        "quantity": "Menge",
        "unit_price": "Einzelpreis",
        "amount": "Betrag",
        "tokens_per_million": "je Million",
        "no_usage": "Keine Nutzung in diesem Zeitraum.",
        "usage": "Zwischensumme",
        "credit": "Verrechnetes Guthaben",
        "credited": "Ihrem Guthaben zugeführt",
        "tax": "Steuer",
        "net": "Nettobetrag",
        "total": "Zu zahlen",
        "note_total": "Gutschriftsbetrag",
        "page": "Seite {number} von {count}",
        "state_draft": "Entwurf",
        "state_final": "Offen",
        "state_sent": "Offen",
        "state_past_due": "Überfällig",
        "state_paid": "Bezahlt",
        "state_void": "Storniert",
        "state_uncollectible": "Ausgebucht",
        "state_nothing": "Nichts zu zahlen",
        "watermark_draft": "VORSCHAU",
        "watermark_void": "STORNIERT",
        "input": "Eingabe-Token",
        "cached_input": "Eingabe-Token aus dem Cache",
        "cache_write": "in den Cache geschriebene Token",
        "output": "Ausgabe-Token",
        "reasoning": "Reasoning-Token",
        "minimum": "Mindestpreis je Anfrage",
        "late_usage": "aus früheren Monaten",
        "adjustment": "Korrektur",
        "price_from": "Preis ab {day}",
        "share": "{days} von {of} Tagen",
        "exact": "Genaue Nutzung {amount}. Jeder Aufruf wird auf ein Milliardstel der Währung bewertet; jede Zeile "
        "wird einmal auf die kleinste Münze gerundet.",
        "reverse": "Steuerschuldnerschaft des Leistungsempfängers (Artikel 196 der Richtlinie 2006/112/EG).",
        "exempt": "Von der Steuer befreit: {reason}.",
        "to": "{first} bis {last}",
        "is_preview": "Dies ist eine Vorschau der bisher bekannten Nutzung. Es ist keine Rechnung; nichts ist fällig.",
        "is_void": "Diese Rechnung wurde am {day} storniert. Es ist nichts zu zahlen.",
        "is_paid": "Bezahlt am {day}. Vielen Dank.",
        "is_covered": "Die Nutzung dieses Zeitraums war durch Guthaben gedeckt. Es ist nichts zu zahlen.",
        "is_written_off": "Diese Rechnung wurde am {day} ausgebucht; sie kann noch bezahlt werden.",
        "is_due": "Bitte zahlen Sie {amount} bis zum {day}.",
        "is_past_due": "{amount} war am {day} fällig. Bitte zahlen Sie jetzt.",
        "is_credited": "{amount} davon wurde gutgeschrieben.",
        "note_reduces": "Dieser Betrag mindert Rechnung {number}.",
        "note_refunds": "Dieser Betrag der Rechnung {number} wird zurückgezahlt.",
        "reason": "Grund",
    },
    "fr": {
        "invoice": "Facture",
        "preview": "Aperçu de facture",
        "credit_note": "Avoir",
        "number": "Numéro de facture",
        "note_number": "Numéro d’avoir",
        "for_invoice": "Pour la facture",
        "issued": "Émise le",
        "due": "Échéance",
        "period": "Période",
        "currency": "Devise",
        "status": "État",
        "bill_to": "Facturé à",
        "tax_id": "N° de TVA",
        "description": "Désignation",
        "quantity": "Quantité",
        "unit_price": "Prix unitaire",
        "amount": "Montant",
        "tokens_per_million": "par million",
        "no_usage": "Aucune utilisation pendant cette période.",
        "usage": "Sous-total",
        "credit": "Crédit prépayé utilisé",
        "credited": "Porté à votre crédit",
        "tax": "Taxe",
        "net": "Montant net",
        "total": "Total à payer",
        "note_total": "Total de l’avoir",
        "page": "Page {number} sur {count}",
        "state_draft": "Brouillon",
        "state_final": "À payer",
        "state_sent": "À payer",
        "state_past_due": "En retard",
        "state_paid": "Payée",
        "state_void": "Annulée",
        "state_uncollectible": "Passée en perte",
        "state_nothing": "Rien à payer",
        "watermark_draft": "APERÇU",
        "watermark_void": "ANNULÉE",
        "input": "jetons d’entrée",
        "cached_input": "jetons d’entrée en cache",
        "cache_write": "jetons écrits dans le cache",
        "output": "jetons de sortie",
        "reasoning": "jetons de raisonnement",
        "minimum": "minimum par requête",
        "late_usage": "de mois antérieurs",
        "adjustment": "correction",
        "price_from": "prix à partir du {day}",
        "share": "{days} jours sur {of}",
        "exact": "Utilisation exacte {amount}. Chaque appel est évalué au milliardième de la devise ; chaque ligne est "
        "arrondie une seule fois à la plus petite pièce.",
        "reverse": "Autoliquidation : taxe due par le preneur (article 196 de la directive 2006/112/CE).",
        "exempt": "Exonéré de taxe : {reason}.",
        "to": "du {first} au {last}",
        "is_preview": "Ceci est un aperçu de l’utilisation connue à ce jour. Ce n’est pas une facture.",
        "is_void": "Cette facture a été annulée le {day}. Rien n’est dû.",
        "is_paid": "Payée le {day}. Merci.",
        "is_covered": "L’utilisation de cette période était couverte par le crédit prépayé. Rien n’est dû.",
        "is_written_off": "Cette facture a été passée en perte le {day} ; elle peut encore être payée.",
        "is_due": "Merci de payer {amount} avant le {day}.",
        "is_past_due": "{amount} était dû le {day}. Merci de payer maintenant.",
        "is_credited": "{amount} a fait l’objet d’un avoir.",
        "note_reduces": "Ce montant est déduit de la facture {number}.",
        "note_refunds": "Ce montant de la facture {number} est remboursé.",
        "reason": "Motif",
    },
    "es": {
        "invoice": "Factura",
        "preview": "Vista previa de factura",
        "credit_note": "Factura rectificativa",
        "number": "Número de factura",
        "note_number": "Número de rectificativa",
        "for_invoice": "De la factura",
        "issued": "Emitida el",
        "due": "Vencimiento",
        "period": "Período",
        "currency": "Moneda",
        "status": "Estado",
        "bill_to": "Facturado a",
        "tax_id": "NIF-IVA",
        "description": "Descripción",
        "quantity": "Cantidad",
        "unit_price": "Precio unitario",
        "amount": "Importe",
        "tokens_per_million": "por millón",
        "no_usage": "Sin uso en este período.",
        "usage": "Subtotal",
        "credit": "Crédito prepago aplicado",
        "credited": "Abonado a su saldo",
        "tax": "Impuesto",
        "net": "Importe neto",
        "total": "Total a pagar",
        "note_total": "Total abonado",
        "page": "Página {number} de {count}",
        "state_draft": "Borrador",
        "state_final": "Pendiente",
        "state_sent": "Pendiente",
        "state_past_due": "Vencida",
        "state_paid": "Pagada",
        "state_void": "Anulada",
        "state_uncollectible": "Incobrable",
        "state_nothing": "Nada que pagar",
        "watermark_draft": "BORRADOR",
        "watermark_void": "ANULADA",
        "input": "tokens de entrada",
        "cached_input": "tokens de entrada en caché",
        "cache_write": "tokens escritos en caché",
        "output": "tokens de salida",
        "reasoning": "tokens de razonamiento",
        "minimum": "mínimo por solicitud",
        "late_usage": "de meses anteriores",
        "adjustment": "corrección",
        "price_from": "precio desde el {day}",
        "share": "{days} de {of} días",
        "exact": "Uso exacto {amount}. Cada llamada se valora hasta la milmillonésima de la moneda; cada línea se "
        "redondea una sola vez a la moneda más pequeña.",
        "reverse": "Inversión del sujeto pasivo (artículo 196 de la Directiva 2006/112/CE).",
        "exempt": "Exento de impuesto: {reason}.",
        "to": "del {first} al {last}",
        "is_preview": "Es una vista previa del uso conocido hasta ahora. No es una factura y no se debe nada.",
        "is_void": "Esta factura se anuló el {day}. No se debe nada.",
        "is_paid": "Pagada el {day}. Gracias.",
        "is_covered": "El uso de este período se cubrió con crédito prepago. No se debe nada.",
        "is_written_off": "Esta factura se dio por incobrable el {day}; aún puede pagarse.",
        "is_due": "Por favor, pague {amount} antes del {day}.",
        "is_past_due": "{amount} venció el {day}. Por favor, pague ahora.",
        "is_credited": "Se abonaron {amount}.",
        "note_reduces": "Este importe se descuenta de la factura {number}.",
        "note_refunds": "Este importe de la factura {number} se devuelve.",
        "reason": "Motivo",
    },
    "nl": {
        "invoice": "Factuur",
        "preview": "Factuurvoorbeeld",
        "credit_note": "Creditnota",
        "number": "Factuurnummer",
        "note_number": "Creditnotanummer",
        "for_invoice": "Bij factuur",
        "issued": "Factuurdatum",
        "due": "Vervaldatum",
        "period": "Periode",
        "currency": "Valuta",
        "status": "Status",
        "bill_to": "Factuur aan",
        "tax_id": "Btw-nummer",
        "description": "Omschrijving",
        "quantity": "Aantal",
        "unit_price": "Stuksprijs",
        "amount": "Bedrag",
        "tokens_per_million": "per miljoen",
        "no_usage": "Geen gebruik in deze periode.",
        "usage": "Subtotaal",
        "credit": "Verrekend tegoed",
        "credited": "Bijgeschreven op uw tegoed",
        "tax": "Belasting",
        "net": "Nettobedrag",
        "total": "Te betalen",
        "note_total": "Totaal gecrediteerd",
        "page": "Pagina {number} van {count}",
        "state_draft": "Concept",
        "state_final": "Open",
        "state_sent": "Open",
        "state_past_due": "Te laat",
        "state_paid": "Betaald",
        "state_void": "Vervallen",
        "state_uncollectible": "Afgeboekt",
        "state_nothing": "Niets te betalen",
        "watermark_draft": "VOORBEELD",
        "watermark_void": "VERVALLEN",
        "input": "invoertokens",
        "cached_input": "invoertokens uit cache",
        "cache_write": "tokens naar de cache geschreven",
        "output": "uitvoertokens",
        "reasoning": "redeneertokens",
        "minimum": "minimum per aanvraag",
        "late_usage": "van eerdere maanden",
        "adjustment": "correctie",
        "price_from": "prijs vanaf {day}",
        "share": "{days} van {of} dagen",
        "exact": "Exact gebruik {amount}. Elke aanroep wordt tot op een miljardste van de valuta berekend; elke regel "
        "wordt één keer afgerond op de kleinste munt.",
        "reverse": "Btw verlegd naar de afnemer (artikel 196 van Richtlijn 2006/112/EG).",
        "exempt": "Vrijgesteld van belasting: {reason}.",
        "to": "{first} tot en met {last}",
        "is_preview": "Dit is een voorbeeld van het gebruik tot nu toe. Het is geen factuur; er is niets te betalen.",
        "is_void": "Deze factuur is op {day} vervallen. Er is niets te betalen.",
        "is_paid": "Betaald op {day}. Dank u wel.",
        "is_covered": "Het gebruik van deze periode is met tegoed betaald. Er is niets te betalen.",
        "is_written_off": "Deze factuur is op {day} afgeboekt; betalen kan nog.",
        "is_due": "Betaal {amount} uiterlijk op {day}.",
        "is_past_due": "{amount} moest op {day} betaald zijn. Betaal nu.",
        "is_credited": "{amount} daarvan is gecrediteerd.",
        "note_reduces": "Dit bedrag gaat af van factuur {number}.",
        "note_refunds": "Dit bedrag van factuur {number} wordt terugbetaald.",
        "reason": "Reden",
    },
}


class Wording:
    """One language. `say` fills in a text; the other methods write figures as its readers do."""

    def __init__(self, language: str) -> None:
        self.language = language if language in _TEXTS else "en"
        self._texts = _TEXTS[self.language]
        self._notation = _NOTATIONS[self.language]

    def say(self, name: str, **values: object) -> str:
        return self._texts[name].format(**values)

    def day(self, moment: datetime | None, zone: ZoneInfo) -> str:
        if moment is None:
            return ""
        with translation.override(self.language):
            return date_format(moment.astimezone(zone), self._notation.day)

    def day_of_month(self, moment: datetime, zone: ZoneInfo) -> str:
        """Its number, as the day of a range in one month."""
        return f"{moment.astimezone(zone).day}{self._notation.after_day}"

    def count(self, number: int) -> str:
        return f"{number:,}".replace(",", self._notation.thousands)

    def percent(self, digits: str) -> str:
        space = "" if self.language == "en" else _FIXED
        return f"{digits.replace('.', self._notation.decimal)}{space}%"

    def nano(self, amount_nano: int, currency: str) -> str:
        """The exact amount: at least the currency's digits, and no more than it needs."""
        whole, fraction = divmod(abs(amount_nano), NANO)
        return self._money(
            amount_nano < 0, whole, f"{fraction:09d}".rstrip("0").ljust(MINOR_DIGITS[currency], "0"), currency
        )

    def minor(self, amount_minor: int, currency: str) -> str:
        digits = MINOR_DIGITS[currency]
        whole, fraction = divmod(abs(amount_minor), 10**digits)
        return self._money(amount_minor < 0, whole, f"{fraction:0{digits}d}" if digits else "", currency)

    def _money(self, is_negative: bool, whole: int, decimals: str, currency: str) -> str:
        number = self.count(whole) + (f"{self._notation.decimal}{decimals}" if decimals else "")
        sign, symbol = "-" if is_negative else "", SYMBOLS.get(currency)
        if symbol is None:
            return f"{sign}{number}{_FIXED}{currency}"
        return self._notation.money.format(sign=sign, symbol=symbol, number=number)
