module feedlane

go 1.19
