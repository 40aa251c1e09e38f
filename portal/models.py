"""Index of the portal's models; each lives in the folder of its domain."""

from portal.alerts.models import Alert, AlertRule, WebhookDelivery, WebhookEndpoint
from portal.api_keys.models import ApiKey, ManagementKey, OperatorKey, RetiredSecret
from portal.audit.models import AuditEvent
from portal.catalog.models import Deployment, Model
from portal.limit_templates.models import LimitTemplate, TemplateLimit, TemplateRun, TemplateUse, TemplateVersion
from portal.operations.models import DeploymentRollup, DeploymentSample, RefusalCount
from portal.operator.models import InvoiceRun, RunOutcome
from portal.organizations.models import Invitation, Member, Organization, Project
from portal.playground.models import SharedConversation
from portal.quotas.models import Quota
from portal.users.models import User

__all__ = [
    "Alert",
    "AlertRule",
    "ApiKey",
    "AuditEvent",
    "Deployment",
    "DeploymentRollup",
    "DeploymentSample",
    "Invitation",
    "InvoiceRun",
    "LimitTemplate",
    "ManagementKey",
    "Member",
    "Model",
    "OperatorKey",
    "Organization",
    "Project",
    "Quota",
    "RefusalCount",
    "RetiredSecret",
    "RunOutcome",
    "SharedConversation",
    "TemplateLimit",
    "TemplateRun",
    "TemplateUse",
    "TemplateVersion",
    "User",
    "WebhookDelivery",
    "WebhookEndpoint",
]
