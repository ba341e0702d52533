module digest

go 1.19

require feedlane v0.0.0

replace feedlane => ../../../capi/go
