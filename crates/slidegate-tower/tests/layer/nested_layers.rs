//! A layer within a layer: what all may, and what each route may.

use axum::Router;
use axum::routing::get;
use slidegate::Store;
use slidegate::headers::Style;
use slidegate_tower::{RateLimitLayer, Settlement, WhenMissing, extract};

use crate::rig::{Http, MINUTE, Rig, serve};

/// Four requests a minute for all, within that two for `/costly`.
async fn nested(rig: &Rig<impl Store>, style: Style) -> Http {
    let everybody = || extract::value("everybody");
    let all = RateLimitLayer::keyed_by(
        rig.limiter(4, MINUTE).named("all"),
        everybody(),
        WhenMissing::Deny,
    );
    let costly = rig.limiter(2, MINUTE).named("costly");
    let costly = RateLimitLayer::keyed_by(costly, everybody(), WhenMissing::Deny);
    let app = Router::new()
        .route("/costly", get(|| async { "costly" }).layer(costly.headers(style)))
        .route("/cheap", get(|| async { "cheap" }))
        .layer(all.headers(style));
    serve(app).await
}

#[tokio::test]
async fn structured_headers_tell_of_both() {
    with_both!(|rig| {
        let http = nested(&rig, Style::Ietf).await;
        for (path, status, stands) in [
            ("/costly", 200, &["\"costly\";r=1;t=60", "\"all\";r=3;t=60"][..]),
            ("/costly", 200, &["\"costly\";r=0;t=60", "\"all\";r=2;t=60"]),
            ("/costly", 429, &["\"costly\";r=0;t=60", "\"all\";r=1;t=60"]),
            ("/cheap", 200, &["\"all\";r=0;t=60"]),
            ("/costly", 429, &["\"all\";r=0;t=60"]),
        ] {
            let answer = http.get(path).await;
            assert_eq!(answer.status, status, "{path} {rig:?}");
            assert_eq!(answer.all("ratelimit"), stands, "{path} {rig:?}");
            assert_eq!(answer.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn the_other_styles_tell_of_the_one_that_is_nearer_to_the_service() {
    for (style, limit, remaining) in [
        (Style::Draft03, "ratelimit-limit", "ratelimit-remaining"),
        (Style::X, "x-ratelimit-limit", "x-ratelimit-remaining"),
    ] {
        with_both!(|rig| {
            let http = nested(&rig, style).await;
            let told = async |path| {
                let answer = http.get(path).await;
                let limit = answer.header(limit).unwrap().split(',').next().unwrap().to_owned();
                (answer.status, limit, answer.header(remaining).unwrap().to_owned())
            };
            for (path, status, limit, remaining) in [
                ("/costly", 200, "2", "1"),
                ("/costly", 200, "2", "0"),
                ("/costly", 429, "2", "0"),
                ("/cheap", 200, "4", "0"),
                ("/costly", 429, "4", "0"),
            ] {
                let expected = (status, limit.to_owned(), remaining.to_owned());
                assert_eq!(told(path).await, expected, "{path} {style} {rig:?}");
            }
        });
    }
}

#[tokio::test]
async fn the_outer_one_can_give_back_what_the_inner_one_denies() {
    with_both!(|rig| {
        let everybody = || extract::value("everybody");
        let all = rig.limiter(3, MINUTE).named("all");
        let all = RateLimitLayer::keyed_by(all, everybody(), WhenMissing::Deny)
            .settle(|answer| if answer.status == 429 { Settlement::Revert } else { Settlement::Keep });
        let costly = rig.limiter(1, MINUTE).named("costly");
        let costly = RateLimitLayer::keyed_by(costly, everybody(), WhenMissing::Deny);
        let app = Router::new()
            .route("/costly", get(|| async { "costly" }).layer(costly))
            .route("/cheap", get(|| async { "cheap" }))
            .layer(all);
        let http = serve(app).await;
        assert_eq!(http.get("/costly").await.status, 200);
        for _ in 0..5 {
            assert_eq!(http.get("/costly").await.all("ratelimit")[0], "\"costly\";r=0;t=60");
        }
        let cheap = http.get("/cheap").await;
        assert_eq!(cheap.header("ratelimit"), Some("\"all\";r=1;t=60"), "{rig:?}");
    });
}
