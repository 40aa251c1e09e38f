"""The one settings file; the environment decides. It refuses to start on a missing or odd value."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from config import support_admin
from config.env import env_bool, env_int, env_list, env_secret, env_str, env_url, networks

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(env_str("VAR_DIR", str(BASE_DIR / "var"))).resolve()

DEBUG = env_bool("DEBUG", False)
SECRET_KEY = env_secret("SECRET_KEY")
# Digests of API keys are HMACs under this pepper; changing it invalidates every key.
API_KEY_PEPPER = env_secret("API_KEY_PEPPER")
for _name, _value in (("SECRET_KEY", SECRET_KEY), ("API_KEY_PEPPER", API_KEY_PEPPER)):
    if len(_value) < 32:
        raise ImproperlyConfigured(f"{_name} must have at least 32 characters.")

PUBLIC_URL = env_url("PUBLIC_URL", {"http", "https"}, "http://127.0.0.1:8000").rstrip("/")
API_BASE_URL = f"{PUBLIC_URL}/v1"
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
# Whose X-Forwarded-For is believed: addresses and networks of the proxies in front.
TRUSTED_PROXIES = networks("TRUSTED_PROXIES", env_list("TRUSTED_PROXIES"))
IS_HTTPS = PUBLIC_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_HTTPS
SESSION_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if IS_HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "django.forms",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "axes",
    "django_htmx",
    "django_filters",
    "django_tables2",
    "django_celery_beat",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "portal",
    "api",
    "billing",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    # Pages; with bytes of random length against guessing secrets from sizes. Static files lie there compressed already.
    "portal.compression.PageCompressionMiddleware",
    "csp.middleware.CSPMiddleware",
    "portal.admin_policy.AdminPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "portal.plain_text.PlainTextMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.language.ReaderLanguageMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.fragments.FragmentMiddleware",
    "portal.lost_sessions.LostSessionMiddleware",
    "portal.error_pages.FormAddressMiddleware",
    "portal.operator.acting.ActingMiddleware",
    "portal.time_zone.ReaderTimeZoneMiddleware",
    "portal.audit.origin.OriginMiddleware",
    "portal.users.two_factor.TwoFactorMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.i18n",
                "portal.context.service",
            ],
        },
    },
]

# Widgets are drawn from `templates/`, then as Django draws them.
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"

# PostgreSQL -------------------------------------------------------------------------------------
DATABASE_URL = env_url("DATABASE_URL", {"postgresql", "postgres"})
# Of one process. In a gateway the two threads that write usage records keep one each.
DATABASE_POOL_MAX = env_int("DATABASE_POOL_MAX", 8, minimum=4)


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        # A pooled connection of before a restart of PostgreSQL is noticed when it is taken, not by its user.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "pool": {"min_size": 1, "max_size": DATABASE_POOL_MAX, "timeout": 10},
            "connect_timeout": 5,
            # Statements over many partitions look dear to the planner: it would compile them for longer than they run.
            "options": "-c jit=off",
        },
    }


DATABASES = {"default": _database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Valkey -----------------------------------------------------------------------------------------
VALKEY_URL = env_url("VALKEY_URL", {"redis", "rediss", "unix", "valkey"}).replace("valkey://", "redis://")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # A socket waits 5 s at a time for what is pushed; a read that gives up by then would end it.
        "CONFIG": {"hosts": [{"address": VALKEY_URL, "socket_timeout": 30}], "prefix": "live"},
    }
}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": VALKEY_URL, "KEY_PREFIX": "cache"}
}

# Engine -----------------------------------------------------------------------------------------
ENGINE_ADDRESS = env_str("ENGINE_ADDRESS", "127.0.0.1:50051")

# Celery -----------------------------------------------------------------------------------------
CELERY_BROKER_URL = VALKEY_URL
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
# Without the two unacked settings a killed worker's tasks wait 100 s for the next sweep.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": env_int("CELERY_VISIBILITY_TIMEOUT_S", 600, minimum=15),
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "global_keyprefix": "celery:",
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

# Sign-in ----------------------------------------------------------------------------------------
AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
ACCOUNT_CONFIRM_EMAIL_ON_GET = False
ACCOUNT_LOGIN_ON_EMAIL_CONFIRMATION = True
ACCOUNT_UNIQUE_EMAIL = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "portal.users.adapter.AccountAdapter"
LOGIN_URL = "account_login"
CSRF_FAILURE_VIEW = "portal.error_pages.form_expired"
LOGIN_REDIRECT_URL = "/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "portal.users.passwords.KnownPasswordValidator"},
]
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_ADAPTER = "portal.users.adapter.MFAAdapter"
MFA_TOTP_ISSUER = "Token Factory"
# A code is still taken one period late or early: clocks of phones differ, and people type slowly (RFC 6238, 5.2).
MFA_TOTP_TOLERANCE = 1
# Browsers allow security keys on https and on http://localhost; the library would refuse the latter.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not IS_HTTPS
# One OpenID Connect provider beside passwords; without an issuer there is none.
OIDC_NAME = env_str("OIDC_NAME", "single sign-on")
OIDC_ISSUER = env_url("OIDC_ISSUER", {"http", "https"}, "")
OIDC_CLIENT_ID = env_str("OIDC_CLIENT_ID", "")
OIDC_CLIENT_SECRET = env_secret("OIDC_CLIENT_SECRET", "")
if OIDC_ISSUER and not (OIDC_CLIENT_ID and OIDC_CLIENT_SECRET):
    raise ImproperlyConfigured("OIDC_ISSUER is set; set OIDC_CLIENT_ID and OIDC_CLIENT_SECRET too.")
SOCIALACCOUNT_ADAPTER = "portal.users.adapter.SocialAccountAdapter"
SOCIALACCOUNT_AUTO_SIGNUP = True
# A form that leads to the issuer would be held back by our own content policy (form-action), so a link does.
SOCIALACCOUNT_LOGIN_ON_GET = True
# The issuer vouches for the address, so it may sign in the person who has it here already.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = True
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "oidc",
                "name": OIDC_NAME,
                "client_id": OIDC_CLIENT_ID,
                "secret": OIDC_CLIENT_SECRET,
                "settings": {"server_url": OIDC_ISSUER},
            }
        ]
        if OIDC_ISSUER
        else [],
    }
}
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_VERBOSE = False
AXES_LOCKOUT_TEMPLATE = "429.html"
AXES_CLIENT_IP_CALLABLE = "portal.client_address.text_of"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]

# E-mail -----------------------------------------------------------------------------------------
# Without a server, mail goes to the console and to the development mailbox page.
EMAIL_HOST = env_str("SMTP_HOST", "")
EMAIL_PORT = env_int("SMTP_PORT", 587)
EMAIL_HOST_USER = env_str("SMTP_USER", "")
EMAIL_HOST_PASSWORD = env_secret("SMTP_PASSWORD", "")
EMAIL_USE_TLS = env_bool("SMTP_TLS", True)
DEFAULT_FROM_EMAIL = env_str("MAIL_FROM", "Token Factory <no-reply@localhost>")
HAS_MAIL_SERVER = bool(EMAIL_HOST)
EMAIL_BACKEND = (
    "django.core.mail.backends.smtp.EmailBackend" if HAS_MAIL_SERVER else "portal.mailbox.backend.MailboxBackend"
)
MAILBOX_DIR = VAR_DIR / "mailbox"

# Organizations ------------------------------------------------------------------------------------
# A deleted organization can be restored for so long.
ORGANIZATION_GRACE_DAYS = env_int("ORGANIZATION_GRACE_DAYS", 30, minimum=1)
# Webhooks to loopback, private and link-local addresses are refused unless this is set.
WEBHOOK_ALLOW_PRIVATE = env_bool("WEBHOOK_ALLOW_PRIVATE", False)
# Calls of the management API that one management key or one signed-in person may make.
MANAGEMENT_API_RATE = env_str("MANAGEMENT_API_RATE", "600/min")

# What a cached input token counts in limits of tokens, in percent of a token.
CACHED_TOKEN_LIMIT_PERCENT = env_int("CACHED_TOKEN_LIMIT_PERCENT", 100)
if CACHED_TOKEN_LIMIT_PERCENT > 100:
    raise ImproperlyConfigured(f"CACHED_TOKEN_LIMIT_PERCENT={CACHED_TOKEN_LIMIT_PERCENT} is above 100.")

# Money ------------------------------------------------------------------------------------------
FREE_CREDIT_NANO = env_int("FREE_CREDIT_NANO", 5_000_000_000)
# Domains whose addresses get none, e.g. of throw-away mailboxes.
FREE_CREDIT_BLOCKED_DOMAINS = [name.lower() for name in env_list("FREE_CREDIT_BLOCKED_DOMAINS", "")]
STRIPE_SECRET_KEY = env_secret("STRIPE_SECRET_KEY", "")
STRIPE_API_BASE = env_url("STRIPE_API_BASE", {"http", "https"}, "")
STRIPE_WEBHOOK_SECRETS = [s for s in env_secret("STRIPE_WEBHOOK_SECRET", "").split(",") if s.strip()]
if STRIPE_SECRET_KEY and not STRIPE_WEBHOOK_SECRETS:
    raise ImproperlyConfigured(
        "STRIPE_WEBHOOK_SECRET must be set when STRIPE_SECRET_KEY is: unsigned events are never applied."
    )
if "_live_" in STRIPE_SECRET_KEY and not env_bool("STRIPE_ALLOW_LIVE", False):
    raise ImproperlyConfigured("STRIPE_SECRET_KEY is a live key; set STRIPE_ALLOW_LIVE=1 too if real money is meant.")
# Currencies that are sold in; the first is a new organization's unless another is chosen. Nothing is converted.
BILLING_CURRENCIES = [code.upper() for code in env_list("BILLING_CURRENCIES", "USD")]
if not BILLING_CURRENCIES or not all(len(code) == 3 and code.isalpha() for code in BILLING_CURRENCIES):
    raise ImproperlyConfigured("BILLING_CURRENCIES must be codes of three letters, as in USD,EUR.")
# Who issues the invoices: name and address, lines separated by "|".
INVOICE_ISSUER = "\n".join(part.strip() for part in env_str("INVOICE_ISSUER", "Token Factory").split("|"))
# The country decides which tax is charged (docs/operations/invoices.md); without one, none is.
INVOICE_ISSUER_COUNTRY = env_str("INVOICE_ISSUER_COUNTRY", "").upper()
if INVOICE_ISSUER_COUNTRY and not (len(INVOICE_ISSUER_COUNTRY) == 2 and INVOICE_ISSUER_COUNTRY.isalpha()):
    raise ImproperlyConfigured("INVOICE_ISSUER_COUNTRY must be a country code of two letters, such as DE.")
INVOICE_ISSUER_TAX_ID = env_str("INVOICE_ISSUER_TAX_ID", "")
# The register in which tax numbers of the European Union are looked up (VIES), up to /rest-api; empty: nowhere.
VIES_URL = env_url("VIES_URL", {"http", "https"}, "")
# Lines at the foot of every invoice, separated by "|": bank account, register, contact.
INVOICE_FOOTER = "\n".join(part.strip() for part in env_str("INVOICE_FOOTER", "").split("|") if part.strip())
# A PNG or JPEG file, printed at the top.
INVOICE_LOGO = env_str("INVOICE_LOGO", "")
INVOICE_NUMBER_PREFIX = env_str("INVOICE_NUMBER_PREFIX", "INV")
CREDIT_NOTE_NUMBER_PREFIX = env_str("CREDIT_NOTE_NUMBER_PREFIX", "CN")
INVOICE_DUE_DAYS = env_int("INVOICE_DUE_DAYS", 30)
# A month's draft waits so long for late usage and corrections; then it is made anew and issued.
INVOICE_GRACE_HOURS = env_int("INVOICE_GRACE_HOURS", 6)
# Whether an invoice waits until its month is closed in reconciliation; if not, it says when it did not.
INVOICE_REQUIRE_CLOSED_PERIOD = env_bool("INVOICE_REQUIRE_CLOSED_PERIOD", False)
# Bought credit ends so long after its payment; 0: never.
TOP_UP_EXPIRY_DAYS = env_int("TOP_UP_EXPIRY_DAYS", 365)
# Exported files are kept so long.
EXPORT_RETENTION_DAYS = env_int("EXPORT_RETENTION_DAYS", 30, minimum=1)

# Requests ---------------------------------------------------------------------------------------
REQUEST_BODY_LIMIT_BYTES = env_int("REQUEST_BODY_LIMIT_BYTES", 16 * 1024 * 1024, minimum=1024)
# Whoever sends slower is let go: a body is held in memory, and its sender is not known before it is whole.
REQUEST_BODY_TIMEOUT_S = env_int("REQUEST_BODY_TIMEOUT_S", 60, minimum=1)
# A generation that runs longer is ended by the engine.
REQUEST_TIMEOUT_S = env_int("REQUEST_TIMEOUT_S", 600, minimum=1)
# A stream that says nothing for so long gets a keep-alive comment.
STREAM_KEEPALIVE_S = env_int("STREAM_KEEPALIVE_S", 12, minimum=1)
# On a stop, calls under way may end by themselves for this long; then they are cancelled.
DRAIN_TIMEOUT_S = env_int("DRAIN_TIMEOUT_S", 20)
# A gateway has so long to finish a record whose engine receipt is here; then the receipt finishes it.
RECEIPT_GRACE_S = env_int("RECEIPT_GRACE_S", 60)
# Receipts of closed months are deleted this long after the month's end; 0 keeps them.
RECEIPT_RETENTION_DAYS = env_int("RECEIPT_RETENTION_DAYS", 400)
# Usage records go so many months after their month's end, once it is closed, invoiced and summed; 0 keeps them.
USAGE_RETENTION_MONTHS = env_int("USAGE_RETENTION_MONTHS", 0, minimum=0)
# Calls while PostgreSQL is away: refuse them, or serve them and record them on this machine's disk until it is back.
UNMETERED_CALLS = env_str("UNMETERED_CALLS", "refuse")
if UNMETERED_CALLS not in ("refuse", "serve"):
    raise ImproperlyConfigured(f"UNMETERED_CALLS is {UNMETERED_CALLS!r}; write refuse or serve.")
# A record still open so long after its call had to end, without a receipt, is closed as lost.
STALE_MARGIN_S = env_int("STALE_MARGIN_S", 300)
# Prometheus metrics of the web process, on an address of their own; 0 = none.
GATEWAY_METRICS_PORT = env_int("GATEWAY_METRICS_PORT", 0)
GATEWAY_METRICS_HOST = env_str("GATEWAY_METRICS_HOST", "127.0.0.1")
# Prometheus metrics of all workers' tasks, served by each worker; 0 = none.
WORKER_METRICS_PORT = env_int("WORKER_METRICS_PORT", 0)
WORKER_METRICS_HOST = env_str("WORKER_METRICS_HOST", "127.0.0.1")
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440
# Kept responses (of organizations that switched it on) are forgotten this long after their last use; 0 keeps none.
RESPONSE_RETENTION_DAYS = env_int("RESPONSE_RETENTION_DAYS", 30)

# Own files only, no inline script or style. The admin alone loosens it (portal/admin_policy.py).
CONTENT_SECURITY_POLICY: dict[str, Any] = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

UNFOLD = support_admin.UNFOLD

# Static files and locale ------------------------------------------------------------------------
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = VAR_DIR / "static"
# Collected files carry a digest in their name, so browsers keep them for ever, and lie there compressed.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "config.static_files.HashedStorage"},
}
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
LOCALE_PATHS = [BASE_DIR / "portal" / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env_str("LOG_LEVEL", "INFO")},
}

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_THROTTLE_RATES": {"management": MANAGEMENT_API_RATE},
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Token Factory API",
    "DESCRIPTION": "Models under OpenAI's and Anthropic's APIs, and the management of keys and usage.",
    "VERSION": "1",
    # The schemas of the inference paths say what may be null as 3.1 does.
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "api.rest.openapi.add_inference_paths",
    ],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_INCLUDE_SCHEMA": False,
}

# Loaded with the settings, so that every process that sends a task (web, worker, command) sends it to this broker.
from config.celery import app as celery_app  # noqa: E402, F401
