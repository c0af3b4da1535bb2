//! How refusals are written. Looks at responses after the layer and the upstream, and writes those
//! that carry a problem the way the configuration wants it.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{Either, Full};
use oncekey::layer::ResponseBody;
use oncekey::problem::{self, Code, Problem, Retryable};
use serde_json::json;

use super::forward::Reply;
use super::template::{Template, TemplateError};
use crate::config::{ErrorFormat, Errors};

/// What refusals look like.
#[derive(Debug)]
pub(crate) struct ErrorDialect {
    form: Form,
    statuses: Vec<(Code, u16)>,
    /// The page that explains them.
    base: Box<str>,
}

#[derive(Debug)]
enum Form {
    Problem,
    Stripe,
    Template(Template),
}

const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// What Stripe's libraries believe more than a status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

impl ErrorDialect {
    /// # Errors
    /// If there is a template that cannot be used.
    pub(crate) fn new(errors: &Errors) -> Result<Self, TemplateError> {
        let form = match &errors.format {
            ErrorFormat::Problem => Form::Problem,
            ErrorFormat::Stripe => Form::Stripe,
            ErrorFormat::Template { file, content_type } => {
                Form::Template(Template::read(file, content_type.as_deref())?)
            }
        };
        let base = errors.docs.as_deref().unwrap_or(problem::DEFAULT_BASE).into();
        Ok(Self { form, statuses: errors.statuses.to_vec(), base })
    }

    /// The page that explains problems.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Writes a response anew if it carries a problem. `new_id` makes an id for a request that has
    /// none, because no rule applied to it.
    pub(super) fn rewrite(
        &self,
        mut response: Response<ResponseBody<Reply>>,
        method: &Method,
        new_id: impl FnOnce() -> String,
    ) -> Response<ResponseBody<Reply>> {
        let Some(mut problem) = response.extensions_mut().remove::<Problem>() else {
            return response;
        };
        // A problem with another status than its code usually has was given it for a reason.
        let is_usual = problem.status == problem.code.status();
        let configured = self.statuses.iter().find(|(code, _)| *code == problem.code);
        if let Some((_, status)) = configured.filter(|_| is_usual) {
            problem.status = *status;
        }
        if let Ok(status) = StatusCode::from_u16(problem.status) {
            *response.status_mut() = status;
        }
        let id = problem.request_id.get_or_insert_with(new_id).clone();
        let (body, content_type) = self.document(&problem);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.remove(CONTENT_LENGTH);
        let link = format!("<{}>; rel=\"describedby\"", problem.code.type_uri(&self.base));
        let lines = [(LINK, link), (REQUEST_ID, id)];
        for (name, text) in lines {
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(name, value);
            }
        }
        if let Some(seconds) = problem.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Form::Stripe = self.form {
            let retry = if problem.retryable == Retryable::Yes { "true" } else { "false" };
            headers.insert(SHOULD_RETRY, HeaderValue::from_static(retry));
        }
        let body = match *method {
            Method::HEAD => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
                Bytes::new()
            }
            _ => body,
        };
        // The connection may know more about what went wrong.
        response.extensions_mut().insert(problem);
        response.map(|_| ResponseBody::new(Either::Right(Full::new(body))))
    }

    fn document(&self, problem: &Problem) -> (Bytes, HeaderValue) {
        match &self.form {
            Form::Problem => {
                let body = problem.to_json(&self.base).into();
                (body, HeaderValue::from_static(problem::MEDIA_TYPE))
            }
            Form::Stripe => {
                let error = json!({ "error": {
                    "type": stripe_type(problem),
                    "code": problem.code.label(),
                    "message": problem.detail,
                    "doc_url": problem.code.type_uri(&self.base),
                    "request_id": problem.request_id,
                }});
                (error.to_string().into(), HeaderValue::from_static("application/json"))
            }
            Form::Template(template) => {
                (template.fill(problem, &self.base), template.content_type())
            }
        }
    }
}

/// The type by which Stripe's libraries choose the exception that they raise.
fn stripe_type(problem: &Problem) -> &'static str {
    let about_the_key = matches!(
        problem.code,
        Code::KeyReused
            | Code::KeyTooOld
            | Code::InProgress
            | Code::OutcomeUnknown
            | Code::Parked
            | Code::ResponseNotRetained
    );
    match (about_the_key, problem.status) {
        (true, _) => "idempotency_error",
        (false, 500..) => "api_error",
        (false, _) => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::*;

    fn dialect(form: Form, statuses: &[(Code, u16)]) -> ErrorDialect {
        ErrorDialect { form, statuses: statuses.to_vec(), base: "https://d".into() }
    }

    fn carrying(problem: Option<Problem>) -> Response<ResponseBody<Reply>> {
        let mut response =
            Response::new(ResponseBody::new(Either::Right(Full::from("the upstream's"))));
        if let Some(problem) = problem {
            response.extensions_mut().insert(problem);
        }
        response
    }

    async fn text(response: Response<ResponseBody<Reply>>) -> String {
        let Ok(body) = response.into_body().collect().await else { panic!("a body in memory") };
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn answers_of_the_upstream_are_left_alone() {
        let dialect = dialect(Form::Stripe, &[(Code::KeyReused, 409)]);
        let response =
            dialect.rewrite(carrying(None), &Method::POST, || unreachable!("no problem"));
        assert!(response.headers().is_empty());
        assert_eq!(
            (response.status(), text(response).await.as_str()),
            (StatusCode::OK, "the upstream's")
        );
    }

    #[tokio::test]
    async fn a_problem_gets_the_status_and_the_id_that_it_should_have() {
        let dialect = dialect(Form::Problem, &[(Code::InProgress, 425)]);
        let mut problem = Problem::new(Code::InProgress, "Wait.");
        problem.retry_after = Some(Duration::from_millis(1_500));
        let response =
            dialect.rewrite(carrying(Some(problem)), &Method::POST, || "req_9".to_owned());
        assert_eq!(response.status(), 425);
        assert_eq!(response.headers()["request-id"], "req_9");
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["content-type"], problem::MEDIA_TYPE);
        let body = text(response).await;
        assert!(
            body.contains(r#""status":425"#) && body.contains(r#""request_id":"req_9""#),
            "{body}"
        );
    }

    #[tokio::test]
    async fn libraries_of_stripe_are_told_what_to_raise_and_whether_to_retry() {
        for (code, kind, retry) in [
            (Code::KeyReused, "idempotency_error", "false"),
            (Code::InProgress, "idempotency_error", "true"),
            (Code::KeyMissing, "invalid_request_error", "false"),
            (Code::UpstreamUnreachable, "api_error", "true"),
        ] {
            let mut problem = Problem::new(code, "Text.");
            problem.request_id = Some("req_1".to_owned());
            let dialect = dialect(Form::Stripe, &[]);
            let response = dialect
                .rewrite(carrying(Some(problem)), &Method::POST, || unreachable!("it has one"));
            assert_eq!(response.headers()["stripe-should-retry"], retry);
            let body: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
            assert_eq!(body["error"]["type"], kind);
            assert_eq!(body["error"]["code"], code.label());
        }
    }

    #[tokio::test]
    async fn an_answer_to_head_has_a_length_and_no_body() {
        let problem = Problem::new(Code::KeyNotFound, "No.");
        let dialect = dialect(Form::Problem, &[]);
        let response = dialect.rewrite(carrying(Some(problem)), &Method::HEAD, || "r".to_owned());
        assert!(response.headers().contains_key(CONTENT_LENGTH));
        assert_eq!(text(response).await, "");
    }
}
